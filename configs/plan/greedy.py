"""The same by the greedy rule of OMGS-SGD and MG-WFBP."""

from dgc.planner import MergedGreedily
from utils.config import Config, configs

configs.train.compression.planner = Config(MergedGreedily)
