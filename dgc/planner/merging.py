"""Merging layers into buckets: waiting for the next gradient against the cost of one more message.

Layers, in the order in which their gradients are computed, are divided into groups of neighbours.
The caller provides the times of each group; ``dgc/timeline.py`` computes the time of a step from
them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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


MOST = 1000  # undominated groupings of the first layers that are extended


def exact(count: int, group_cost: GroupCost, backward: float) -> list[int]:
    """Find the grouping whose step ends first, of all 2^(count-1), by dynamic programming.

    A grouping of the first layers is discarded where another one leaves the network free no later
    and has spent no more processor time: the end of the step is monotone in both
    (``dgc/timeline.py``), so no continuation of the first can end earlier. Tens of groupings are
    left in practice; of more than MOST, only MOST are extended, so that the time is bounded.

    Args:
        count: The number of layers.
        group_cost: Times of a group.
        backward: When the backward pass ends, in seconds from the start of the step.

    Returns:
        The index after the last layer of each group, ascending; the last is ``count``.
    """
    # One element for each grouping that is left, of any number of first layers.
    free, spent = np.zeros(1), np.zeros(1)
    stops, before = np.zeros(1, int), np.full(1, -1)  # its last stop; the grouping without it
    for stop in range(1, count + 1):
        costs = np.array([group_cost(first, stop) for first in range(stop)])  # [stop, 4]
        last = BucketTimes(*costs[stops].T)
        state = Progression(backward, free, spent).after(last)
        left = undominated(np.asarray(state.free), np.asarray(state.spent))
        free = np.append(free, np.asarray(state.free)[left])
        spent = np.append(spent, np.asarray(state.spent)[left])
        stops, before = np.append(stops, np.full(len(left), stop)), np.append(before, left)
    complete = np.flatnonzero(stops == count)
    ends = np.asarray(Progression(backward, free[complete], spent[complete]).end)
    grouping = complete[np.lexsort((spent[complete], ends))[0]]
    found: list[int] = []
    while stops[grouping]:
        found.append(int(stops[grouping]))
        grouping = before[grouping]
    return found[::-1]


def undominated(free: NDArray[np.float64], spent: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices of the Pareto-optimal pairs, by ascending ``free``; at most MOST."""
    order = np.lexsort((spent, free))
    least = np.minimum.accumulate(spent[order])
    optimal = order[np.concatenate([[True], spent[order][1:] < least[:-1]])]
    if len(optimal) > MOST:
        optimal = optimal[np.linspace(0, len(optimal) - 1, MOST).astype(int)]
    return optimal
