"""Rank 4: the default."""

from utils.config import configs

configs.train.compression.rank = 4
