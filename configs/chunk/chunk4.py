"""Chunks of 4 elements: the finest selection, n/4 norms; for small models and few steps."""

from utils.config import configs

configs.train.compression.exchange.chunk = 4
