"""Random-k (Stich et al., NeurIPS 2018, arXiv 1809.07599; Wangni et al., arXiv 1710.09854).

On each rank, for the gradient g of a bucket:

    1. v ← v + g
    2. Draw k positions, the same on all ranks
    3. All-reduce of v at these positions: no indices are sent
    4. v ← 0 there
    5. w ← w - lr·sum / P

Or without v (``unbiased``), with the result multiplied by n/k: right in expectation, with a
variance of n/k - 1 times the squared gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from dgc.algorithms.deep_gradient_compression import published_schedule
from dgc.clipping import Clipping
from dgc.composition import Composition
from dgc.exchanges import RandomK
from dgc.memory import Memory, NoMemory, Residual
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules


def random_k(
    compress_ratio: float = 0.01,
    warmup_epochs: int = 0,
    warmup_coeff: float | Sequence[float] | None = None,
    warmup_stage_steps: int | None = None,
    warmup_steps: int = 0,
    seed: int = 0,
    unbiased: bool = False,
    memory: Memory | None = None,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return random-k with a residual, or unbiased without one.

    Args:
        compress_ratio: The density.
        warmup_epochs, warmup_coeff, warmup_stage_steps, warmup_steps: See DensitySchedule.
        seed: Of the positions.
        unbiased: Scale by n/k, and keep no residual.
        memory: Error feedback; a residual, or none where unbiased.
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=memory or (NoMemory() if unbiased else Residual()),
        exchange=RandomK(seed, unbiased),
        schedule=published_schedule(
            compress_ratio, warmup_epochs, warmup_coeff, warmup_stage_steps, warmup_steps
        ),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )
