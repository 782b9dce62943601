"""Asynchronous SGD: dense in both directions; each worker has its own momentum."""

from dgc.memory import MomentumCorrection
from utils.config import Config, configs

configs.train.compression.compress_ratio = 1.0
configs.train.compression.memory = Config(MomentumCorrection)
