"""Chunks of 16 elements: a finer selection, and more norms to sum; for small models."""

from utils.config import configs

configs.train.compression.exchange.chunk = 16
