"""Deep Gradient Compression at 0.1 %, with the settings of the published release."""

from dgc import DGCSGD, deep_gradient_compression
from dgc.memory import MomentumCorrection
from utils.config import Config, configs

BASE = True  # files of other folders build on these settings, and replace them without a warning

configs.train.compression = configs.train.compression.using(deep_gradient_compression)
configs.train.compression.compress_ratio = 0.001
configs.train.compression.memory = Config(MomentumCorrection)
configs.train.optimizer = configs.train.optimizer.using(DGCSGD)
