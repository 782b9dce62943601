"""Clamped to 2.5 standard deviations of each layer first, as in the paper: the default."""

from dgc.clipping import ClipByDeviation
from utils.config import Config, configs

configs.train.compression.gradient_clipping = Config(ClipByDeviation, limit=2.5)
