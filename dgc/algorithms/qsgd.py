"""QSGD (Alistarh et al., NeurIPS 2017, arXiv 1610.02132; section 3.1).

On each rank, for the gradient g of a bucket, in blocks:

    1. Scale each block to the levels 0 … s, with s = 2^(bits-1) - 1
    2. Round each value to a neighbouring level at random, so that its expectation is the value
    3. Send the scale of each block, signs and levels
    4. w ← w - lr·(mean over the ranks)

Unbiased, so there is no error feedback. Without the paper's variable-length code of the levels.
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


def qsgd(
    bits: int = 4,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return QSGD.

    Args:
        bits: Of a value: 8, 4 or 2.
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.

    Raises:
        ValueError: For another number of bits.
    """
    if bits not in (2, 4, 8):
        raise ValueError(f'bits must be 2, 4 or 8, got {bits}')
    return Composition(
        memory=NoMemory(),
        codec=Codec(f'qsgd{bits}', 'none'),
        exchange=AllGather(),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )
