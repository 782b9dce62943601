"""A binomial tree and a broadcast: the default."""

from dgc.exchanges import GTopK
from utils.config import Config, configs

configs.train.compression.exchange = Config(GTopK)
