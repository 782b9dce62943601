"""signSGD with majority vote: the default."""

from dgc.algorithms.sign_sgd import sign_sgd
from utils.config import Config, configs

configs.train.compression = Config(sign_sgd)
