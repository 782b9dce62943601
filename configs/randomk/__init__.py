"""Random-k at 1 %: the same random positions on all ranks, all-reduced without indices.

After files of a model. Without the optimizer's momentum: an element waits for about 1/density
steps, and momentum applied after that amplifies what is stale. Raise the learning rate instead.
"""

from dgc.algorithms.random_k import random_k
from utils.config import Config, configs

configs.train.compression = Config(random_k)
if 'momentum' in configs.train.optimizer:  # which AdamW has not
    configs.train.optimizer.momentum = 0.0
