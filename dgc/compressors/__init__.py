"""What is sent: each compressor selects a part of a tensor, one a file."""

from dgc.compressors.base import Compressor, keep
from dgc.compressors.block_topk import BlockTopK
from dgc.compressors.dense import Dense
from dgc.compressors.gaussian import GaussianThreshold
from dgc.compressors.periodic import PeriodicThreshold
from dgc.compressors.sampled import SampledTopK
from dgc.compressors.topk import TopK

__all__ = [
    'BlockTopK',
    'Compressor',
    'Dense',
    'GaussianThreshold',
    'PeriodicThreshold',
    'SampledTopK',
    'TopK',
    'keep',
]
