"""The threshold is that of exponential tails, fitted in stages (SIDCo), instead of a sample's."""

from dgc.compressors import ExponentialThreshold
from utils.config import Config, configs

configs.train.compression.compressor = Config(ExponentialThreshold)
