"""Asynchronous Deep Gradient Compression: momentum correction and factor masking."""

from dgc.memory import MomentumCorrection
from utils.config import Config, configs

configs.train.compression.memory = Config(MomentumCorrection)
