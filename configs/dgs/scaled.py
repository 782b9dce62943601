"""Stale updates count less: each is divided by its staleness."""

from dgc.parameter_server import InverseStaleness
from utils.config import Config, configs

configs.train.compression.scaling = Config(InverseStaleness)
