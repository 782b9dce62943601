"""Each element of each rank's gradient before the exchange."""

from dgc.clipping import ClipByValue
from utils.config import Config, configs

configs.train.compression.gradient_clipping = Config(ClipByValue, limit=0.1)
