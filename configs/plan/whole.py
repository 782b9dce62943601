"""One bucket of all sparse parameters and one of all dense ones, after the backward pass."""

from dgc.planner import Whole
from utils.config import Config, configs

configs.train.compression.planner = Config(Whole)
