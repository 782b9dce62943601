"""DeMo: decoupled momentum; the learning rate is the size of every element's step."""

import torch

from dgc.algorithms.demo import demo
from utils.config import Config, configs

configs.train.compression = Config(demo)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
configs.train.optimizer.momentum = 0.0
configs.train.optimizer.lr = 0.0005
