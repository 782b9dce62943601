"""Both of Adam's moments in the optimizer, and a residual. Use after adam.py or adamw.py."""

from dgc.memory import Residual
from utils.config import Config, configs

configs.train.compression.memory = Config(Residual)
