"""Machines of two ranks, whatever the launcher says: for the simulated engine."""

from utils.config import configs

configs.train.compression.exchange.local_size = 2
