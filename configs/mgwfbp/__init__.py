"""MG-WFBP: dense all-reduce of merged layers, grouped by measured times."""

from dgc import dense
from dgc.planner import Merged
from utils.config import Config, configs

configs.train.compression = Config(dense)
configs.train.compression.planner = Config(Merged)
