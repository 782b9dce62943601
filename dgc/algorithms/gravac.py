"""GraVAC (Tyagi and Swany, CLOUD 2023, arXiv 2305.12201; Algorithm 1).

With a density ρ that begins at its largest, in each window of steps:

    1. Compress residual + gradient with ρ; here, by Deep Gradient Compression
    2. The compression gain is Σ‖sent‖² / Σ‖residual + gradient‖² over the window, all layers and
       all ranks                                                              dgc/control/
    3. Where it is at least a bound, ρ ← ρ/2, down to the smallest; else ρ ← 2·ρ, up to the largest

The paper also weighs the gain by the measured throughput at two densities, and changes ρ where the
product grows. Times differ from run to run, and decisions by them would too; they are left out.
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.control import GraVAC


def gravac(compress_ratio: float = 0.001, gain: float = 0.2, **settings: Any) -> Composition:
    """Return Deep Gradient Compression with a density that follows the compression gain.

    Args:
        compress_ratio: The smallest density.
        gain: The compression gain that is wanted.
        settings: Others of ``deep_gradient_compression``.
    """
    return deep_gradient_compression(compress_ratio, **{'control': GraVAC(gain=gain), **settings})
