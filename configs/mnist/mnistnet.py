"""Two convolutions and two linear layers, 22 k parameters."""

from models.mnist import mnistnet
from utils.config import Config, configs, derived

configs.model = Config(mnistnet, num_classes=derived(lambda: configs.dataset.num_classes))
