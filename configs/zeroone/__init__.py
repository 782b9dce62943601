"""0/1 Adam: momenta of one bit per element from the first step on, then local steps.

After files of a model. Every rank's batch counts for the learning rate.
"""

from dgc.algorithms.zero_one_adam import zero_one_adam
from dgc.optim import ZeroOneAdam
from utils.config import Config, configs
from utils.training.averaging import MomentumSums

configs.train.averaging = Config(MomentumSums)
configs.train.compression = Config(zero_one_adam)
configs.train.optimizer = Config(ZeroOneAdam)
configs.train.optimizer.lr = 0.0005
