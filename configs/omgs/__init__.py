"""OMGS-SGD: top 0.1 % of merged layers, grouped by measured times; residual memory.

Use after files of configs/dgc/, whose warm-up and encodings are kept.
"""

import torch

from dgc import deep_gradient_compression
from dgc.memory import Residual
from dgc.planner import Merged
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(Residual)
configs.train.compression.planner = Config(Merged)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
