"""gTop-k S-SGD at 0.1 %: pairwise sums truncated to the top k, in a tree; residual memory.

Use after files of configs/dgc/, whose warm-up and encodings are kept.
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
