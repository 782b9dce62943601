"""EF-signSGD: signs scaled by a mean magnitude, with a residual; the model's learning rate."""

from dgc.algorithms.sign_sgd import ef_sign_sgd
from utils.config import Config, configs

configs.train.compression = Config(ef_sign_sgd)
