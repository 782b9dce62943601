"""The grouping of neighbouring layers that ends the step soonest, by measured times."""

from dgc.planner import Merged
from utils.config import Config, configs

configs.train.compression.planner = Config(Merged)
