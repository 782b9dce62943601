"""What is sent: each compressor chooses a part of a tensor, one a file."""

from dgc.compressors.base import Compressor, keep
from dgc.compressors.dense import Dense
from dgc.compressors.gaussian import GaussianThreshold
from dgc.compressors.periodic import PeriodicThreshold
from dgc.compressors.sampled import SampledTopK
from dgc.compressors.topk import TopK

__all__ = [
    'Compressor',
    'Dense',
    'GaussianThreshold',
    'PeriodicThreshold',
    'SampledTopK',
    'TopK',
    'keep',
]
