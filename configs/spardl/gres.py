"""Global residuals: every truncation error is kept, once: the default."""

from dgc.exchanges import GlobalResiduals
from utils.config import Config, configs

configs.train.compression.exchange.residuals = Config(GlobalResiduals)
