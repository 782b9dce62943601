"""Warm-up of five dense epochs, then the final density."""

from utils.config import configs

configs.train.compression.warmup_epochs = 5
configs.train.compression.warmup_coeff = [1, 1, 1, 1, 1]
