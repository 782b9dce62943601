"""MuLoCo: DiLoCo with Muon as its inner optimizer (Thérien et al., arXiv 2505.23725).

From the parameters θ_s on which all ranks agree:

    1. H steps on each rank: Muon for matrices, AdamW for the rest:  θ         dgc/optim/muon.py
    2. Δ = θ_s - θ;  e ← β·e + Δ                                               dgc/memory/
    3. own ← Q(e), 2 bits an element;  e ← e - own                             dgc/codec/
    4. θ_s ← outer step on the mean own (SGD, Nesterov momentum 0.9, rate 0.7);  θ ← θ_s

Step 3 is that of quantized DiLoCo: the rank that averages a slice codes the mean again, with an
error memory of its own.
"""

from __future__ import annotations

from dgc.algorithms.diloco import quantized_diloco
from dgc.composition import Composition
from dgc.planner import Planner
from dgc.rules import LayerRules


def muloco(
    values: str = '2bit',
    decay: float = 1.0,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return the composition for movements of Muon: two bits per element, with error feedback.

    Args:
        values: Coding of the elements, see Codec.
        decay: β.
        rules: By default all parameters are quantized, vectors too.
        planner: Divides the parameters among buckets.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return quantized_diloco(values, decay, rules, planner, nonfinite)
