"""The greedy grouping of OMGS-SGD and MG-WFBP, by measured times."""

from dgc.planner import MergedGreedily
from utils.config import Config, configs

configs.train.compression.planner = Config(MergedGreedily)
