"""The greedy grouping of the published algorithm."""

from dgc.planner import MergedGreedily
from utils.config import Config, configs

configs.train.compression.planner = Config(MergedGreedily)
