"""DiLoCo (Douillard et al., arXiv 2311.08105; Algorithm 1); Local SGD (Stich, arXiv 1805.09767).

From the parameters θ_s on which all ranks agree:

    1. H steps of an inner optimizer on each rank (AdamW):  θ        dgc/local_steps.py
    2. Δ = θ_s - θ, averaged over the ranks                          this composition
    3. An outer step on the mean Δ (SGD, Nesterov momentum 0.9, rate 0.7):  θ_s;  θ ← θ_s

With an outer SGD of rate 1 without momentum it is Local SGD: the parameters are averaged.
"""

from __future__ import annotations

from dgc.composition import Composition
from dgc.planner import BySize, Planner


def diloco(planner: Planner | None = None, nonfinite: str = 'stop') -> Composition:
    """Return the composition for the movement of local steps: an uncompressed all-reduce.

    Args:
        planner: Divides the parameters among buckets.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(planner=planner or BySize(), nonfinite=nonfinite)
