"""Deep Gradient Compression between machines, dense all-reduce inside each.

Use after files of configs/dgc/, whose warm-up and encodings are kept.
"""

from dgc import DGCSGD, deep_gradient_compression
from dgc.exchanges import AllGather, Hierarchical
from dgc.memory import MomentumCorrection
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(MomentumCorrection)
configs.train.compression.exchange = Config(Hierarchical)
configs.train.compression.exchange.exchange = Config(AllGather)
configs.train.optimizer = configs.train.optimizer.using(DGCSGD)
