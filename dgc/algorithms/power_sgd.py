"""PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727; Algorithms 1 and 2).

On each rank, for each gradient matrix [n, m]:

    1. M ← gradient + e
    2. P ← mean(M·Q), orthonormalized;  Q_i ← Mᵀ·P;  Q ← mean(Q_i)       dgc/exchanges/power_sgd.py
    3. e ← M - P·Q_iᵀ
    4. w ← w - lr·P·Qᵀ, with the optimizer's own momentum

Vectors are sent uncompressed. The first steps may be uncompressed (``start_step``).
"""

from __future__ import annotations

from dgc.clipping import Clipping
from dgc.composition import Composition
from dgc.exchanges import PowerSGD
from dgc.memory import Residual
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


def power_sgd(
    rank: int = 4,
    start_step: int = 0,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return PowerSGD with error feedback.

    Args:
        rank: Columns of the factors.
        start_step: The first steps, which are uncompressed.
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=Residual(),
        exchange=PowerSGD(rank),
        schedule=after_uncompressed_steps(start_step),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )


def after_uncompressed_steps(steps: int) -> DensitySchedule:
    """Return the schedule that sends all elements compressed, after ``steps`` uncompressed ones.

    Raises:
        ValueError: For a negative number of steps.
    """
    if steps < 0:
        raise ValueError(f'the number of uncompressed steps must be at least 0, got {steps}')
    if steps == 0:
        return DensitySchedule(1.0)
    return DensitySchedule(1.0, warmup_epochs=1, warmup_coeff=[1.0], stage_steps=steps)
