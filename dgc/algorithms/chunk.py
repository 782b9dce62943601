"""Chunks chosen together (Sun et al., arXiv 1902.06855).

In each step, on each rank:

    1. Momentum correction as in Deep Gradient Compression
    2. L1 norm of every chunk of c elements; all-reduce of the n/c norms
    3. All ranks choose the same ⌈k/c⌉ chunks of the largest norms
    4. All-reduce of these chunks, without indices
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.exchanges import ChunkAllReduce


def chunk(compress_ratio: float = 0.001, chunk: int = 16, **settings: Any) -> Composition:
    """Return chunk-wise sparsification with momentum correction.

    Args:
        compress_ratio: The density.
        chunk: c, elements of a chunk.
        settings: Others of ``deep_gradient_compression``.
    """
    parts = {'exchange': ChunkAllReduce(chunk), **settings}
    return deep_gradient_compression(compress_ratio, **parts)
