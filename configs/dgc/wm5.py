"""Warm-up of five epochs: density 0.316, 0.1, 0.032, 0.01, 0.0032, then 0.001."""

from utils.config import configs

configs.train.compression.warmup_epochs = 5
