"""A fixed threshold: all elements of 0.3 and more, at most 10 %, in messages of their length."""

from dgc.compressors import FixedThreshold
from dgc.exchanges import TightAllGather
from utils.config import Config, configs

configs.train.compression.compressor = Config(FixedThreshold, threshold=0.3)
configs.train.compression.exchange = Config(TightAllGather)
configs.train.compression.compress_ratio = 0.1
