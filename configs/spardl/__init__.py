"""SparDL at 0.1 %: one team, exact top-k of each block, global residual collection.

Use after files of configs/dgc/, whose warm-up and encodings are kept.
"""

import torch

from dgc import deep_gradient_compression
from dgc.exchanges import SparDL
from dgc.memory import Residual
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(Residual)
configs.train.compression.compressor = None  # the exchange selects
configs.train.compression.exchange = Config(SparDL)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
