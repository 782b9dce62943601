"""Exact thresholds every 32 steps, regions every 64, as in the paper: the default."""

from utils.config import configs

configs.train.compression.compressor.period = 32
configs.train.compression.exchange.threshold_period = 32
configs.train.compression.exchange.region_period = 64
