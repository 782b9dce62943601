"""signSGD: one bit per element.

After files of a model.
"""

from dgc.algorithms.sign_sgd import sign_sgd
from utils.config import Config, configs

configs.train.compression = Config(sign_sgd)
