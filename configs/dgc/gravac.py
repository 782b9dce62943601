"""GraVAC: a density from 10 % down, as long as messages keep enough of what they compress."""

from dgc.control import GraVAC
from utils.config import Config, configs

configs.train.compression.control = Config(GraVAC)
configs.train.compression.control.largest = 100.0
configs.train.compression.control.gain = 0.2
