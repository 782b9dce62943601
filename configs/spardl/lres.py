"""Local residuals: the error of truncations after a rank has sent is lost."""

from dgc.exchanges import LocalResiduals
from utils.config import Config, configs

configs.train.compression.exchange.residuals = Config(LocalResiduals)
