"""The paper's warm-up (section 3.3), which also reaches a density of 0.001 in the fifth epoch."""

from utils.config import configs

configs.train.compression.warmup_epochs = 5
configs.train.compression.warmup_coeff = [0.25, 0.063, 0.016, 0.004, 0.001]
