"""SIDCo (Abdelmoniem et al., MLSys 2021, arXiv 2101.10761; Algorithm 1, double exponential).

In each step, on each rank:

    1. Momentum correction as in Deep Gradient Compression (or a residual, as in the paper)
    2. η ← mean|v|·ln 4;  M - 1 times: η ← η + mean(|v| - η over |v| > η)·ln(1/δ), with δ = 1/4 but
       for the last stage, so that all fractions multiply to the density
    3. All-gather of what exceeds η
    4. Every five steps, M changes by one where the number of elements was off by a fifth
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.compressors import ExponentialThreshold


def sidco(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return sparsification by a threshold fitted in stages, with momentum correction.

    Args:
        compress_ratio: The density.
        settings: Others of ``deep_gradient_compression``.
    """
    parts = {'compressor': ExponentialThreshold(), **settings}
    return deep_gradient_compression(compress_ratio, **parts)
