"""Momentum and velocity in bfloat16: half of the memory of compression."""

from utils.config import configs

configs.train.compression.memory.dtype = 'bfloat16'
