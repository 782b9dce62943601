"""signSGD with majority vote; the learning rate is the size of every element's step."""

from dgc.algorithms.sign_sgd import sign_sgd
from utils.config import Config, configs

configs.train.compression = Config(sign_sgd)
configs.train.optimizer.lr = 0.0002
