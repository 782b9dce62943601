"""1-bit SGD: one bit per element, two means per row, a residual; the model's learning rate."""

from dgc.algorithms.one_bit_sgd import one_bit_sgd
from utils.config import Config, configs

configs.train.compression = Config(one_bit_sgd)
