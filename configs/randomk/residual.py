"""Error feedback by a residual: the default."""

from utils.config import configs

configs.train.compression.unbiased = False
