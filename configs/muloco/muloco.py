"""Muon for matrices, AdamW for the rest, both at a rate of 0.003: the default."""

from utils.config import configs

configs.train.optimizer.lr = 0.003
