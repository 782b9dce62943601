"""Adam's first moment in the memory, before compression. Use after adam.py or adamw.py."""

from dgc.memory import FirstMoment
from utils.config import Config, configs

configs.train.compression.memory = Config(FirstMoment)
if configs.train.optimizer.betas[0]:  # else it has followed the memory: utils/adaptive.py
    configs.train.compression.memory.beta1 = configs.train.optimizer.betas[0]
    configs.train.optimizer.betas = (0.0, configs.train.optimizer.betas[1])
