"""Random-k at 1 %: the same random positions on all ranks, all-reduced without indices."""

from dgc.algorithms.random_k import random_k
from utils.config import Config, configs

configs.train.compression = Config(random_k)
