"""The final ratio from the first step on."""

from utils.config import configs

configs.train.compression.warmup_epochs = 0
