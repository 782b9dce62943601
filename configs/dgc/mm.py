"""Momentum factor masking (section 3.3 of the paper): the default."""

from utils.config import configs

configs.train.compression.memory.momentum_masking = True
