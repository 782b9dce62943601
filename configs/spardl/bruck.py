"""Teams are summed by Bruck's all-gather of an adaptive size, for any number of teams."""

from dgc.exchanges import Bruck
from utils.config import Config, configs

configs.train.compression.exchange.gather = Config(Bruck)
