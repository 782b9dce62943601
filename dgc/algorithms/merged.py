"""Layers merged by measured times: OMGS-SGD (Shi et al., INFOCOM 2020) and MG-WFBP (Shi et al.,
INFOCOM 2019).

    1. Measure when each layer's gradient appears, and what compression and exchange cost
    2. From the output to the input, merge a layer with the next where waiting for it costs less
       than one exchange saves:

         wait   = b(l-1) + s(both) - s(l) - s(l-1) - (time until the network is free)
         saving = c(k_l) + c(k_(l-1)) - c(k_l + k_(l-1))

    3. Train with these buckets: OMGS-SGD with top-k and a residual, MG-WFBP uncompressed (s = 0)

Here the grouping is optimal (dynamic programming); the published greedy rule is a planner too.
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.algorithms.dense import dense
from dgc.composition import Composition
from dgc.memory import Residual
from dgc.planner import Merged


def omgs(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return OMGS-SGD: merged layers, the largest elements, a residual.

    Args:
        compress_ratio: The density.
        settings: Others of ``deep_gradient_compression``.
    """
    return deep_gradient_compression(
        compress_ratio, **{'memory': Residual(), 'planner': Merged(), **settings}
    )


def mgwfbp(**settings: Any) -> Composition:
    """Return MG-WFBP: merged layers, uncompressed.

    Args:
        settings: Of ``dense``.
    """
    return dense(**{'planner': Merged(), **settings})
