"""Recursive doubling: fewer rounds, in which every rank sends."""

from dgc.exchanges import GTopKDoubling
from utils.config import Config, configs

configs.train.compression.exchange = Config(GTopKDoubling)
