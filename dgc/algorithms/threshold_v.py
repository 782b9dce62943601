"""Threshold-v (Strom, Interspeech 2015; Dutta et al., AAAI 2020, arXiv 1911.08250).

In each step, on each rank:

    1. Momentum correction as in Deep Gradient Compression (or a residual, as in the papers)
    2. Select every element of v with |v| ≥ threshold, whatever their number
    3. Gather the lengths of the messages, then the messages; add them, divide by P

Strom sends ±threshold for each element, and keeps the rest in a residual; here their values are
sent, as by Dutta et al.
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.compressors import FixedThreshold
from dgc.exchanges import TightAllGather


def threshold_v(
    compress_ratio: float = 0.1, threshold: float = 0.3, **settings: Any
) -> Composition:
    """Return sparsification by a fixed threshold, with momentum correction.

    Args:
        compress_ratio: The largest density; where more exceeds the threshold, the largest go first.
        threshold: In units of the accumulated gradient.
        settings: Others of ``deep_gradient_compression``.
    """
    parts = {'compressor': FixedThreshold(threshold), 'exchange': TightAllGather(), **settings}
    return deep_gradient_compression(compress_ratio, **parts)
