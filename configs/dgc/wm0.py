"""No warm-up: the final density from the first step on."""

from utils.config import configs

configs.train.compression.warmup_epochs = 0
configs.train.compression.warmup_coeff = None
