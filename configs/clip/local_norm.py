"""Each rank's gradient before the exchange, to a norm of limit·√P (Deep Gradient Compression)."""

from dgc.clipping import ClipByModelNorm
from utils.config import Config, configs

configs.train.compression.gradient_clipping = Config(ClipByModelNorm, limit=1.0)
