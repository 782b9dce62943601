"""Chunks of 16: chosen better than large ones, and more norms to sum; for small models."""

from utils.config import configs

configs.train.compression.exchange.chunk = 16
