"""TernGrad (Wen et al., NeurIPS 2017, arXiv 1705.07878; Algorithm 1).

On each rank, for the gradient g of a bucket:

    1. Clamp g to 2.5 standard deviations of its layer (section 5)
    2. s ← max|g| of a block; b ← 1 with probability |g|/s, else 0
    3. Send s·sign(g)·b: 1.6 bits per element, one float32 per block
    4. w ← w - lr·(mean over the ranks)

Steps 2 and 3 are unbiased, so there is no error feedback. The paper has one s per layer, shared by
the ranks so that a server can add whole numbers; here every rank adds decoded messages.
"""

from __future__ import annotations

from dgc.clipping import ClipByDeviation, Clipping
from dgc.codec import Codec
from dgc.composition import Composition
from dgc.exchanges import AllGather
from dgc.memory import NoMemory
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


def tern_grad(
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return TernGrad.

    Args:
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient; by default the paper's 2.5 deviations.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=NoMemory(),
        codec=Codec('ternary', 'none'),
        exchange=AllGather(),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping or ClipByDeviation(2.5),
        nonfinite=nonfinite,
    )
