"""Chunks of 4: chosen best, at the price of n/4 norms; for small models and few steps."""

from utils.config import configs

configs.train.compression.exchange.chunk = 4
