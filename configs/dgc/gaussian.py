"""The threshold is computed from a fitted normal distribution instead of a sample."""

from dgc.compressors import GaussianThreshold
from utils.config import Config, configs

configs.train.compression.compressor = Config(GaussianThreshold)
