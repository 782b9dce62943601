"""Workers that may die, stall and join, over torchft. After files of a model and of a composition.

Each worker is started by itself, with --configs.elastic.lighthouse host:port.
"""

from utils.config import Config, configs
from utils.training.elastic import Elastic

configs.engine.name = 'torchft'
configs.train.distribution = Config(Elastic)
