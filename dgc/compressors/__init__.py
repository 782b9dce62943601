"""Compressors select the elements of a tensor that are sent, one per file."""

from dgc.compressors.base import Compressor, keep
from dgc.compressors.block_topk import BlockTopK
from dgc.compressors.dense import Dense
from dgc.compressors.exponential import ExponentialThreshold
from dgc.compressors.fixed import FixedThreshold
from dgc.compressors.gaussian import GaussianThreshold
from dgc.compressors.periodic import PeriodicThreshold
from dgc.compressors.sampled import SampledTopK
from dgc.compressors.topk import TopK

__all__ = [
    'BlockTopK',
    'Compressor',
    'Dense',
    'ExponentialThreshold',
    'FixedThreshold',
    'GaussianThreshold',
    'PeriodicThreshold',
    'SampledTopK',
    'TopK',
    'keep',
]
