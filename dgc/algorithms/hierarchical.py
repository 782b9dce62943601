"""Uncompressed inside a machine, sparse between machines.

In each step, on each rank:

    1. Reduce the gradients of a machine's ranks to its first rank, uncompressed
    2. There: momentum correction and selection, as in Deep Gradient Compression
    3. A sparse exchange between the machines' first ranks
    4. Broadcast of the sum inside each machine
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.exchanges import AllGather, Exchange, Hierarchical


def hierarchical(
    compress_ratio: float = 0.001,
    between: Exchange | None = None,
    local_size: int | None = None,
    **settings: Any,
) -> Composition:
    """Return hierarchical sparsification with momentum correction.

    Args:
        compress_ratio: The density between machines.
        between: The exchange between machines; an all-gather by default.
        local_size: Ranks of a machine; by default what the engine says.
        settings: Others of ``deep_gradient_compression``.
    """
    exchange = Hierarchical(between or AllGather(), local_size)
    return deep_gradient_compression(compress_ratio, **{'exchange': exchange, **settings})
