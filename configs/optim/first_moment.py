"""Adam's first moment in the memory, before compression. Use after adam.py or adamw.py."""

from dgc.memory import FirstMoment
from utils.config import Config, configs

configs.train.compression.memory = Config(FirstMoment, beta1=configs.train.optimizer.betas[0])
configs.train.optimizer.betas = (0.0, configs.train.optimizer.betas[1])
