"""Asynchronous gradient dropping (Aji and Heafield, 2017): a residual, without momentum."""

from dgc.memory import Residual
from utils.config import Config, configs

configs.train.compression.memory = Config(Residual)
configs.train.optimizer.momentum = 0.0
