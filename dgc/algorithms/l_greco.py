"""L-GreCo (Markov et al., MLSys 2024, arXiv 2210.17357; Algorithm 1).

Every N steps, for the layers l and densities ρ from ρ_0/8 to 8·ρ_0:

    1. Measure the error of each layer at each density: the sum of squares that a message of the
       largest elements would leave, added up over the ranks                     dgc/control/
    2. The budget is the sum of the layers' errors at the common density ρ_0
    3. By dynamic programming over layers and parts of the budget, choose densities whose messages
       are shortest in all, among those whose errors add up to at most the budget
    4. Until the next time, compress each layer with its density; here, by Deep Gradient Compression

The paper measures gradients that it adds up between two decisions. Here it is what is compressed,
residual + gradient. It applies to ranks of PowerSGD and bits of QSGD as well; here to densities.
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.control import LGreCo
from dgc.planner import PerTensor


def l_greco(compress_ratio: float = 0.001, every: int = 100, **settings: Any) -> Composition:
    """Return Deep Gradient Compression with densities by layer, for the error of a common one.

    Args:
        compress_ratio: The common density.
        every: Steps between two decisions.
        settings: Others of ``deep_gradient_compression``.
    """
    chosen = {'planner': PerTensor(), 'control': LGreCo(every), **settings}
    return deep_gradient_compression(compress_ratio, **chosen)
