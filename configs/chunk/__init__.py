"""Whole chunks at 0.1 %, chosen by all workers together and summed without a gather.

After files of configs/dgc/, whose warm-up stays. No codec is involved.
"""

import torch

from dgc import deep_gradient_compression
from dgc.exchanges import ChunkAllReduce
from dgc.memory import Residual
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(Residual)
configs.train.compression.exchange = Config(ChunkAllReduce)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
