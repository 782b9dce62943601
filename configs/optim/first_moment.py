"""Adam's first moment in the memory, before compression. Use after adam.py or adamw.py."""

from dgc.memory import FirstMoment
from utils.config import Config, configs

configs.train.compression.memory = Config(FirstMoment)  # whose optimizer has a beta1 of 0
