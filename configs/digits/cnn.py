"""Two convolutions and two linear layers, 36 k parameters."""

from models.digits import digits_cnn
from utils.config import Config, configs

configs.model = Config(digits_cnn)
