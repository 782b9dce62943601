"""Machines exchange messages by gTop-k's tree."""

from dgc.exchanges import GTopK
from utils.config import Config, configs

configs.train.compression.exchange.exchange = Config(GTopK)
