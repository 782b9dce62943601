"""No secondary compression: the server answers with every parameter that has changed."""

from dgc.parameter_server import Changed
from utils.config import Config, configs

configs.train.compression.secondary = Config(Changed)
