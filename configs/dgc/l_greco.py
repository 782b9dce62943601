"""L-GreCo: densities by layer, of the fewest bytes at the error of a common density."""

from dgc.control import LGreCo
from dgc.planner import PerTensor
from utils.config import Config, configs

configs.train.compression.planner = Config(PerTensor)
configs.train.compression.control = Config(LGreCo)
configs.train.compression.control.every = 100
