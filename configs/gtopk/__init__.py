"""gTop-k S-SGD at 0.1 %: sums of two cut to the largest, up a tree; residual memory.

After files of configs/dgc/, whose warm-up and encodings stay.
"""

import torch

from dgc import deep_gradient_compression
from dgc.exchanges import GTopK
from dgc.memory import Residual
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(Residual)
configs.train.compression.exchange = Config(GTopK)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
