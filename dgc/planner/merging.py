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


def greedy(
    count: int, group_cost: GroupCost, backward: float, pipelined: bool = False
) -> list[int]:
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
        pipelined: Whether a message is made while the one before it travels.

    Returns:
        The index after the last layer of each group, ascending; the last is ``count``.
    """
    stops, state, first = [], Progression(backward, pipelined=pipelined), 0
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


def exact(count: int, group_cost: GroupCost, backward: float, pipelined: bool = False) -> list[int]:
    """Find the grouping whose step ends first, of all 2^(count-1), by dynamic programming.

    A grouping of the first layers is discarded where another one leaves the network and the thread
    that makes messages free no later, and has spent no more processor time: the end of the step is
    monotone in all three (``dgc/timeline.py``), so no continuation of the first can end earlier.
    Tens of groupings are left in practice; of more than MOST, only MOST are extended, so that the
    time is bounded.

    Args:
        count: The number of layers.
        group_cost: Times of a group.
        backward: When the backward pass ends, in seconds from the start of the step.
        pipelined: Whether a message is made while the one before it travels.

    Returns:
        The index after the last layer of each group, ascending; the last is ``count``.
    """
    # One element for each grouping that is left, of any number of first layers.
    states = Progression(backward, np.zeros(1), np.zeros(1), np.zeros(1), pipelined)
    stops, before = np.zeros(1, int), np.full(1, -1)  # its last stop; the grouping without it
    for stop in range(1, count + 1):
        costs = np.array([group_cost(first, stop) for first in range(stop)])  # [stop, 4]
        after = states.after(BucketTimes(*costs[stops].T))
        left = undominated(*times_of(after))
        columns = zip(times_of(states), times_of(after), strict=True)
        free, spent, idle = (np.append(old, new[left]) for old, new in columns)
        states = Progression(backward, free, spent, idle, pipelined)
        stops, before = np.append(stops, np.full(len(left), stop)), np.append(before, left)
    complete = np.flatnonzero(stops == count)
    spent = np.asarray(states.spent)[complete]
    grouping = complete[np.lexsort((spent, np.asarray(states.end)[complete]))[0]]
    found: list[int] = []
    while stops[grouping]:
        found.append(int(stops[grouping]))
        grouping = before[grouping]
    return found[::-1]


def times_of(states: Progression) -> list[NDArray[np.float64]]:
    """Return the times by which states after the same layers are compared."""
    return [np.asarray(each) for each in (states.free, states.spent, states.idle)]


def undominated(first: NDArray[np.float64], *others: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices at which no other has all times at most as large, by ascending ``first``;
    the first of equal ones, and at most MOST."""
    left = np.lexsort((*others[::-1], first))
    optimal: list[np.int64] = []
    while len(left):  # what is left has no smaller ``first``
        best, left = left[0], left[1:]
        optimal.append(best)
        dominated = np.all([each[left] >= each[best] for each in others], axis=0)
        left = left[~dominated]
    if len(optimal) > MOST:
        return np.array(optimal)[np.linspace(0, len(optimal) - 1, MOST).astype(int)]
    return np.array(optimal)
