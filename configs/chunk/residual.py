"""Residual memory in place of momentum correction: much less accurate with few, large chunks."""

import torch

from dgc.memory import Residual
from utils.config import Config, configs

configs.train.compression.memory = Config(Residual)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
