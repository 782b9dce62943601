"""The digits, with a trace of the steps, and checkpoints of any size: tools/faults/trace.py."""

from tools.faults.trace import Traced, ballasted
from utils.config import Config, configs

configs.model = Config(ballasted, ballast=0)
configs.train.criterion = Config(Traced)
