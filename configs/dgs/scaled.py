"""The server divides each update by its staleness."""

from dgc.parameter_server import InverseStaleness
from utils.config import Config, configs

configs.train.compression.scaling = Config(InverseStaleness)
