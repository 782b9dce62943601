"""Chunk-wise top-k at 0.1 %: all ranks send the same chunks; momentum correction, as in the paper.

Use after files of configs/dgc/, whose warm-up is kept. No codec is involved.
"""

from dgc import DGCSGD, deep_gradient_compression
from dgc.exchanges import ChunkAllReduce
from dgc.memory import MomentumCorrection
from utils.config import Config, configs

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(MomentumCorrection)
configs.train.compression.compressor = None  # the exchange selects
configs.train.compression.exchange = Config(ChunkAllReduce)
configs.train.optimizer = configs.train.optimizer.using(DGCSGD)
