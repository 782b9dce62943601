"""No momentum factor masking."""

from utils.config import configs

configs.train.compression.memory.momentum_masking = False
