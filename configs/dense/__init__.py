"""Everything is sent at every step: the baseline that the others are compared with."""

from dgc import dense
from utils.config import Config, configs

configs.train.compression = Config(dense)
