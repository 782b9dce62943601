"""Each tensor is compressed and sent separately, as in the paper and its release."""

from dgc.planner import PerTensor
from utils.config import Config, configs

configs.train.compression.planner = Config(PerTensor)
