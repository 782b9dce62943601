"""Streaming DiLoCo (Douillard et al., arXiv 2501.18512; Algorithm 2).

The model is divided into fragments of strided layers. For each fragment, with an offset of its own
within the H steps of a round, from its parameters θ_s on which all ranks agree:

    1. H steps of an inner optimizer on each rank:  θ,  Δ = θ_s - θ            dgc/streaming.py
    2. Δ is averaged over the ranks while τ more inner steps are taken         this composition
    3. θ_s ← outer step on the mean Δ (SGD, Nesterov momentum 0.9, rate 0.7)
    4. θ ← α·θ + (1 - α)·θ_s

The composition is that of DiLoCo, uncompressed or quantized: the paper's messages have the values
of 'fp4e3', without error feedback.
"""

from __future__ import annotations

from dgc.algorithms.diloco import diloco
from dgc.composition import Composition
from dgc.planner import Planner


def streaming_diloco(planner: Planner | None = None, nonfinite: str = 'stop') -> Composition:
    """Return the composition for the movement of fragments: an uncompressed all-reduce.

    Args:
        planner: Divides the parameters among buckets, which are cut into fragments.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return diloco(planner, nonfinite)
