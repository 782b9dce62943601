"""signSGD with majority vote; the learning rate is the size of every element's step."""

import torch

from dgc.algorithms.sign_sgd import sign_sgd
from utils.config import Config, configs

configs.train.compression = Config(sign_sgd)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
configs.train.optimizer.lr = 0.0002
