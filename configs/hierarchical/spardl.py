"""Machines exchange messages by SparDL."""

from dgc.exchanges import SparDL
from utils.config import Config, configs

configs.train.compression.exchange.exchange = Config(SparDL)
configs.train.compression.compressor = None  # the exchange selects
