"""LAGS-SGD (Shi et al., ECAI 2020, arXiv 1911.08727; Algorithm 1).

    1. Measure when each layer's gradient appears, and what compression and exchange cost
    2. Each layer l gets the largest density whose exchange is hidden behind the next layer's
       backward time (section 4): c(ρ(l)·n(l)) + s(n(l)) <= b(l-1), within [ρ, ρ_max]
    3. For each layer, as soon as its gradient appears: v ← v + g, send the largest, keep the rest

In the release, the function of step 2 returns the constant 0.001.
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.memory import Residual
from dgc.planner import Adaptive


def lags(compress_ratio: float = 0.001, max_ratio: float = 0.1, **settings: Any) -> Composition:
    """Return LAGS-SGD: a density of its own for each layer, with a residual.

    Args:
        compress_ratio: The smallest density.
        max_ratio: The largest.
        settings: Others of ``deep_gradient_compression``.
    """
    planner = Adaptive(max_ratio=max_ratio)
    return deep_gradient_compression(
        compress_ratio, **{'memory': Residual(), 'planner': planner, **settings}
    )
