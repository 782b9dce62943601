"""Chunks of 1024 elements: as many norms as elements at 0.1 %; for large models."""

from utils.config import configs

configs.train.compression.exchange.chunk = 1024
