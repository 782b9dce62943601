"""gTop-k S-SGD (Shi et al., ICDCS 2019, arXiv 1901.04359; Algorithms 2 to 4).

On each rank, for the gradient g of a bucket:

    1. v ← v + g                                            (Algorithm 4, line 4)
    2. Select the k largest of v; v ← 0 there               (lines 5 to 8)
    3. Add the ranks' messages in ⌈log2 P⌉ rounds of sums of two, each cut to its k largest
                                                            (Algorithm 2, gTopKAllReduce)
    4. What was selected but is not in the result returns to v  (Algorithm 4, line 10)
    5. w ← w - lr·result / P

By a tree and a broadcast (Algorithm 3), or by recursive doubling. Step 4 of the release returns a
rank's own message only; here a partial sum that was cut at an index of the result returns as well,
to the rank that cut it (dgc/exchanges/truncation.py).
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.exchanges import GTopK, GTopKDoubling
from dgc.memory import Residual


def gtopk(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return gTop-k by a tree of sums, with a residual.

    Args:
        compress_ratio: The density.
        settings: Others of ``deep_gradient_compression``.
    """
    parts = {'memory': Residual(), 'exchange': GTopK(), **settings}
    return deep_gradient_compression(compress_ratio, **parts)


def gtopk_doubling(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return gTop-k by recursive doubling: fewer rounds, in which every rank sends."""
    return gtopk(compress_ratio, **{'exchange': GTopKDoubling(), **settings})
