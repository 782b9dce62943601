"""Gaussian-k (Shi et al., arXiv 1911.08772; Algorithm 1).

In each step, on each rank:

    1. Momentum correction as in Deep Gradient Compression
    2. Fit a normal distribution to v; the threshold is its quantile for the density
    3. Correct the threshold until the number of selected elements lies within [2/3 k, 4/3 k]
    4. All-gather of what exceeds it
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.compressors import GaussianThreshold


def gaussian_k(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return sparsification by a fitted threshold, with momentum correction.

    Args:
        compress_ratio: The density.
        settings: Others of ``deep_gradient_compression``.
    """
    parts = {'compressor': GaussianThreshold(), **settings}
    return deep_gradient_compression(compress_ratio, **parts)
