"""LAGS-SGD: layer by layer, as dense as computation hides; at least 0.1 %.

Use after files of configs/dgc/, whose warm-up and encodings are kept.
"""

import torch

from dgc import deep_gradient_compression
from dgc.memory import Residual
from dgc.planner import Adaptive
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(Residual)
configs.train.compression.planner = Config(Adaptive)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
