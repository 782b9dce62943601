"""All sparse parameters in one bucket, sent after the backward pass; so the dense ones."""

from dgc.planner import Whole
from utils.config import Config, configs

configs.train.compression.planner = Config(Whole)
