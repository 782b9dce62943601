"""QSGD: values rounded at random to a few levels; unbiased, so without a residual."""

from dgc.algorithms.qsgd import qsgd
from utils.config import Config, configs

configs.train.compression = Config(qsgd)
