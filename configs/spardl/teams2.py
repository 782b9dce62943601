"""Two teams, summed by recursive doubling: fewer rounds, more bytes."""

from utils.config import configs

configs.train.compression.exchange.teams = 2
