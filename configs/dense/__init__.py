"""No compression: all gradients at every step, the baseline of the other algorithms."""

from dgc import dense
from utils.config import Config, configs

configs.train.compression = Config(dense)
