"""Uncompressed training: the baseline, and the first row of every table.

In each step, on each rank:

    1. Sum the gradients over the ranks (all-reduce), divide by P.
    2. Take the optimizer's step.
"""

from __future__ import annotations

from dgc.clipping import Clipping
from dgc.composition import Composition
from dgc.planner import BySize, Planner


def dense(
    gradient_clipping: Clipping | None = None,
    planner: Planner | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return the composition that sends everything at every step.

    Args:
        gradient_clipping: Bounds on the local gradient.
        planner: Divides the parameters among buckets.
        nonfinite: See ``Composition``.
    """
    return Composition(clipping=gradient_clipping, planner=planner or BySize(), nonfinite=nonfinite)
