"""SparseLoCo: 30 local steps, then two bits for the largest elements of each chunk of movement.

After files of a model. The learning rate is that of one worker.
"""

from dgc.algorithms.sparse_loco import sparse_loco
from utils.config import Config, configs
from utils.training.averaging import OuterSteps

configs.train.averaging = Config(OuterSteps)
configs.train.averaging.lr = 1.0
configs.train.averaging.momentum = 0.0
configs.train.averaging.nesterov = False
configs.train.compression = Config(sparse_loco)
