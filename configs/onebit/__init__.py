"""1-bit Adam: Adam for some steps, then momenta of one bit per element."""

from dgc.algorithms.one_bit_adam import one_bit_adam
from dgc.optim import OneBitAdam
from utils.config import Config, configs

configs.train.compression = Config(one_bit_adam)
configs.train.compression.freeze_step = 100
configs.train.optimizer = Config(OneBitAdam)
configs.train.optimizer.lr = 0.0005
