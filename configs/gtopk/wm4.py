"""The paper's warm-up: density 0.25, 0.0725, 0.015, 0.004, then 0.001."""

from utils.config import configs

configs.train.compression.warmup_epochs = 4
configs.train.compression.warmup_coeff = [0.25, 0.0725, 0.015, 0.004]
