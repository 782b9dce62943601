"""Ok-Topk (Li and Hoefler, PPoPP 2022, arXiv 2201.07598; Algorithms 1 and 2).

On each rank, for the gradient g of a bucket:

    1. v ← v + g                                                   (Algorithm 2, line 4)
    2. Select by a local threshold, exact every τ' steps and reused in between
                                                                   (Algorithm 1, lines 2 to 4)
    3. Split and reduce: the owner of each region sums it; regions are balanced every τ steps
                                                                   (lines 5 to 8)
    4. Balance and all-gather what exceeds a global threshold      (lines 9 to 13)
    5. v ← 0 where an element was selected and is in the result    (Algorithm 2, lines 6 and 7)
    6. w ← w - lr·result / P
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.compressors import PeriodicThreshold
from dgc.exchanges import OkTopK
from dgc.memory import Residual


def oktopk(
    compress_ratio: float = 0.001,
    threshold_period: int = 32,
    region_period: int = 64,
    **settings: Any,
) -> Composition:
    """Return Ok-Topk with a residual.

    Args:
        compress_ratio: The density.
        threshold_period: τ', steps for which a threshold is reused, local or global.
        region_period: τ, steps for which the regions are reused.
        settings: Others of ``deep_gradient_compression``.
    """
    parts = {
        'memory': Residual(),
        'compressor': PeriodicThreshold(threshold_period),
        'exchange': OkTopK(threshold_period, region_period),
        **settings,
    }
    return deep_gradient_compression(compress_ratio, **parts)
