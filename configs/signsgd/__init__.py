"""signSGD: one bit per element.

After files of a model. The learning rate is the size of every element's step, so it is small.
"""

from dgc.algorithms.sign_sgd import sign_sgd
from utils.config import Config, configs

configs.train.compression = Config(sign_sgd)
configs.train.optimizer.lr = 0.0002
