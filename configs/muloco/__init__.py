"""MuLoCo: 30 local steps of Muon, then an outer step on movements of two bits.

After files of a model. The learning rate is that of one worker.
"""

from dgc.algorithms.muloco import muloco
from dgc.optim import MuonAndAdamW
from utils.config import Config, configs
from utils.training.averaging import OuterSteps

configs.train.averaging = Config(OuterSteps)
configs.train.compression = Config(muloco)
configs.train.optimizer = Config(MuonAndAdamW)
configs.train.optimizer.lr = 0.003
