"""PowerSGD: gradient matrices as products of two thin ones, with error feedback."""

from dgc.algorithms.power_sgd import power_sgd
from utils.config import Config, configs

configs.train.compression = Config(power_sgd)
