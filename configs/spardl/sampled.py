"""Blocks are selected by a sampled threshold: on a CPU much faster than the exact top-k."""

from dgc.compressors import SampledTopK
from utils.config import Config, configs

configs.train.compression.exchange.compressor = Config(SampledTopK)
