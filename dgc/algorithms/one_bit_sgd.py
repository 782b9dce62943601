"""1-bit SGD (Seide et al., Interspeech 2014; section 3).

On each rank, for the gradient g of a bucket, each parameter a matrix:

    1. p ← g + e
    2. Per row: a ← mean of the p ≥ 0, b ← mean of the p < 0
    3. Send a and b of each row, and one bit per element: Q(p) = a where p ≥ 0, else b
    4. e ← p - Q(p)
    5. w ← w - lr·(mean over the ranks)

A row holds the weights into one unit: a column in the paper's layout.
"""

from __future__ import annotations

from dgc.clipping import Clipping
from dgc.composition import Composition
from dgc.exchanges import RowMeans
from dgc.memory import Residual
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


def one_bit_sgd(
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return 1-bit SGD.

    Args:
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=Residual(),
        exchange=RowMeans(),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )
