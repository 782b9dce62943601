"""The buckets of an earlier run: --configs.train.compression.planner.file runs/…/plan.json"""

from dgc.planner import Replay
from utils.config import REQUIRED, Config, configs

configs.train.compression.planner = Config(Replay)
configs.train.compression.planner.file = REQUIRED
