"""Machines exchange messages by an all-gather: the default."""

from dgc.exchanges import AllGather
from utils.config import Config, configs

configs.train.compression.exchange.exchange = Config(AllGather)
