"""Merging layers into buckets: waiting for the next gradient against the cost of one more message.

Layers, in the order in which their gradients are computed, are divided into groups of neighbours.
The caller provides the times of each group; ``dgc/timeline.py`` computes the time of a step from
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dgc.timeline import BucketTimes, Progression

# group_cost(first, stop): the times of layers first … stop - 1 as one bucket.
GroupCost = Callable[[int, int], BucketTimes]


def greedy(count: int, group_cost: GroupCost, backward: float) -> list[int]:
    """Group layers by the greedy rule of OMGS-SGD (Shi et al., INFOCOM 2020).

    From the first gradient to the last, the next layer joins the group where waiting for it costs
    less than merging saves:

        wait   = what the next gradient takes to appear + s(both) - s(group) - s(next)
                 - how long the network is busy with earlier groups meanwhile
        saving = c(group) + c(next) - c(both)

    with s the processor time and c the network time. With s = 0 it is MG-WFBP (Shi et al., INFOCOM
    2019).

    Args:
        count: The number of layers.
        group_cost: Times of a group.
        backward: When the backward pass ends, in seconds from the start of the step.

    Returns:
        The index after the last layer of each group, ascending; the last is ``count``.
    """
    stops, state, first = [], Progression(backward), 0
    for following in range(1, count):
        group, both = group_cost(first, following), group_cost(first, following + 1)
        alone = group_cost(following, following + 1)
        busy = max(state.free - (group.ready + state.spent), 0.0)
        more = both.processor - group.processor - alone.processor
        wait = max(both.ready - group.ready - busy, 0.0) + more
        if wait >= group.network + alone.network - both.network:
            stops.append(following)
            state, first = state.after(group), following
    return [*stops, count]


class Label(NamedTuple):
    """A grouping of the first layers.

    Attributes:
        state: The rank's state after these groups.
        stops: The index after the last layer of the last group, and the label of the groups before
            it; None for no layers.
    """

    state: Progression
    stops: tuple[int, Label] | None


def exact(count: int, group_cost: GroupCost, backward: float) -> list[int]:
    """Find the grouping whose step ends first, of all 2^(count-1), by dynamic programming.

    A grouping of the first layers is discarded where another one leaves the network free no later
    and has spent no more processor time: the end of the step is monotone in both
    (``dgc/timeline.py``), so no continuation of the first can end earlier.

    Args:
        count: The number of layers.
        group_cost: Times of a group.
        backward: When the backward pass ends, in seconds from the start of the step.

    Returns:
        The index after the last layer of each group, ascending; the last is ``count``.
    """
    best: list[list[Label]] = [[Label(Progression(backward), None)]]
    for stop in range(1, count + 1):
        found = []
        for first in range(stop):
            bucket = group_cost(first, stop)
            found += [Label(label.state.after(bucket), (stop, label)) for label in best[first]]
        best.append(undominated(found))
    label = min(best[count], key=lambda each: (each.state.end, each.state.spent))
    # Labels link backwards, from the last group to the first.
    stops: list[int] = []
    while label.stops is not None:
        stop, label = label.stops
        stops.append(stop)
    return stops[::-1]


def undominated(labels: list[Label]) -> list[Label]:
    """Return the Pareto-optimal labels in ``free`` and ``spent``, by ascending ``free``."""
    kept: list[Label] = []
    # Sorted by (backward, free, spent), of which the first is the same for all.
    for label in sorted(labels, key=lambda each: each.state):
        if not kept or label.state.spent < kept[-1].state.spent:
            kept.append(label)
    return kept
