"""Signum: ranks vote with their momenta; the learning rate is the size of every element's step."""

from dgc import DGCSGD
from dgc.algorithms.sign_sgd import signum
from utils.config import Config, configs

configs.train.compression = Config(signum)
configs.train.optimizer = configs.train.optimizer.using(DGCSGD)
configs.train.optimizer.momentum = 0.9
configs.train.optimizer.lr = 0.001
