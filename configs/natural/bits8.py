"""Natural compression: values rounded at random to powers of two; unbiased, without a residual."""

from dgc.algorithms.natural import natural
from utils.config import Config, configs

configs.train.compression = Config(natural)
