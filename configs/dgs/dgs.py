"""Dual-way gradient sparsification with SAMomentum: the default."""

from dgc.memory import SAMomentum
from utils.config import Config, configs

configs.train.compression.memory = Config(SAMomentum)
