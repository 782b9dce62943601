"""Partial residuals: the truncation error at an index that is in the result is lost."""

from dgc.exchanges import PartialResiduals
from utils.config import Config, configs

configs.train.compression.exchange.residuals = Config(PartialResiduals)
