"""Natural compression (Horváth et al., MSML 2022, arXiv 1905.10988; Definition 1).

On each rank, for the gradient g of a bucket:

    1. Round each |g| = (1 + p)·2^a to 2^(a+1) with probability p, else to 2^a
    2. Send the sign and the exponent: 8 bits per element
    3. w ← w - lr·(mean over the ranks)

Unbiased, so there is no error feedback. The variance is at most 1/8 of the gradient's square.
"""

from __future__ import annotations

from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.composition import Composition
from dgc.exchanges import AllGather
from dgc.memory import NoMemory
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


def natural(
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return natural compression.

    Args:
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=NoMemory(),
        codec=Codec('natural', 'none'),
        exchange=AllGather(),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )
