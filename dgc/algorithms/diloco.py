"""DiLoCo (Douillard et al., arXiv 2311.08105; Algorithm 1); Local SGD (Stich, arXiv 1805.09767).

From the parameters θ_s on which all ranks agree:

    1. H steps of an inner optimizer on each rank (AdamW):  θ        dgc/local_steps.py
    2. Δ = θ_s - θ, averaged over the ranks                          this composition
    3. An outer step on the mean Δ (SGD, Nesterov momentum 0.9, rate 0.7):  θ_s;  θ ← θ_s

With an outer SGD of rate 1 without momentum it is Local SGD: the parameters are averaged.

Quantized, step 2 sends Q(Δ + e) of 8 or 4 bits, once to the rank that averages a slice and once
from it, each with an error memory e ← Δ + e - Q(Δ + e) (dgc/exchanges/compressed_all_reduce.py).
"""

from __future__ import annotations

from dgc.codec import Codec
from dgc.composition import Composition
from dgc.exchanges import CompressedAllReduce
from dgc.memory import Residual
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


def diloco(planner: Planner | None = None, nonfinite: str = 'stop') -> Composition:
    """Return the composition for the movement of local steps: an uncompressed all-reduce.

    Args:
        planner: Divides the parameters among buckets.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(planner=planner or BySize(), nonfinite=nonfinite)


def quantized_diloco(
    values: str = 'int8',
    decay: float = 1.0,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return the composition for movements of a few bits per element, with error feedback.

    Args:
        values: Coding of the elements: 'int8', 'int4', 'fp4' (E2M1), 'fp4e3' (E3M0) or '2bit'.
        decay: By which the error memory of each rank fades; 1 keeps everything.
        rules: By default all parameters are quantized, vectors too.
        planner: Divides the parameters among buckets.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=Residual(decay),
        codec=Codec(values, 'none'),
        exchange=CompressedAllReduce(),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(min_dims=0),
        planner=planner or BySize(),
        nonfinite=nonfinite,
    )
