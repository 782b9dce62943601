"""What is cut after a worker sent it is lost."""

from dgc.exchanges import LocalResiduals
from utils.config import Config, configs

configs.train.compression.exchange.residuals = Config(LocalResiduals)
