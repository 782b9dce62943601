"""Momentum correction, with factor masking, in place of the residual."""

from dgc import DGCSGD
from dgc.memory import MomentumCorrection
from utils.config import Config, configs

configs.train.compression.memory = Config(MomentumCorrection)
configs.train.optimizer = configs.train.optimizer.using(DGCSGD)
configs.train.optimizer.momentum = 0.9
