"""A warm-up of 100 steps: the default."""

from utils.config import configs

configs.train.compression.freeze_step = 100
