"""Four bits per value: the default."""

from utils.config import configs

configs.train.compression.bits = 4
