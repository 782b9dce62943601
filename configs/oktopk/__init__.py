"""Ok-Topk at 0.1 %: balanced regions, exact thresholds every 32 steps.

Use after files of configs/dgc/, whose warm-up and encodings are kept.
"""

import torch

from dgc import deep_gradient_compression
from dgc.compressors import PeriodicThreshold
from dgc.exchanges import OkTopK
from dgc.memory import Residual
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(Residual)
configs.train.compression.compressor = Config(PeriodicThreshold)
configs.train.compression.exchange = Config(OkTopK)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
