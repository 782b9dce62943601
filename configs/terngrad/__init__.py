"""TernGrad: -1, 0 or 1 times the maximum of a block, at random; unbiased, so without a residual."""

from dgc.algorithms.tern_grad import tern_grad
from utils.config import Config, configs

configs.train.compression = Config(tern_grad)
