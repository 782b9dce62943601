"""Neighbouring layers travel together where that ends the step sooner, by measured times."""

from dgc.planner import Merged
from utils.config import Config, configs

configs.train.compression.planner = Config(Merged)
