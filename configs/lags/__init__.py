"""LAGS-SGD: each layer by itself, as much of it as hides behind the next; at least 0.1 %.

After files of configs/dgc/, whose warm-up and encodings stay.
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
