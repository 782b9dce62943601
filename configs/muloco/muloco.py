"""Muon at 0.02 for matrices, AdamW at 0.001 for the rest: the default."""

from utils.config import configs

configs.train.optimizer.lr = 0.02
configs.train.optimizer.adamw_lr = 0.001
