"""Eight bits per value."""

from utils.config import configs

configs.train.compression.bits = 8
