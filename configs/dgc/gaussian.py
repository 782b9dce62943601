"""The threshold comes from a fitted normal distribution, not from a sample."""

from dgc.compressors import GaussianThreshold
from utils.config import Config, configs

configs.train.compression.compressor = Config(GaussianThreshold)
