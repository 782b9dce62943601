"""Which neighbours should travel together: waiting for the next against starting once more.

Pieces (layers, in the order in which their gradients appear) are divided into groups of neighbours.
What a group costs is for the caller to say; dgc/timeline.py adds up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dgc.timeline import Passage, State

# The way of the pieces from the first to before the second number, as one group.
Together = Callable[[int, int], Passage]


def greedy(count: int, together: Together, backward: float) -> list[int]:
    """OMGS-SGD (Shi et al., INFOCOM 2020): where each group stops, of ``count`` pieces.

    From the first gradient to the last: a group takes the next piece in where waiting for it costs
    less than a start saves,

        wait   = what the next takes to appear + s(both) - s(group) - s(next)
                 - how long the network is busy with others meanwhile
        saving = c(group) + c(next) - c(both)

    with s the processor's time and c the network's. With s = 0 it is MG-WFBP (Shi et al., INFOCOM
    2019).
    """
    stops, state, first = [], State(backward), 0
    for following in range(1, count):
        group, both = together(first, following), together(first, following + 1)
        alone = together(following, following + 1)
        busy = max(state.free - (group.ready + state.spent), 0.0)
        more = both.processor - group.processor - alone.processor
        wait = max(both.ready - group.ready - busy, 0.0) + more
        if wait >= group.network + alone.network - both.network:
            stops.append(following)
            state, first = state.after(group), following
    return [*stops, count]


class Label(NamedTuple):
    """A way to group some pieces. stops: of its groups, the last first, as a linked list."""

    state: State
    stops: tuple[int, Label] | None


def exact(count: int, together: Together, backward: float) -> list[int]:
    """Where each group stops, so that the step ends first of all 2^(count-1) ways.

    By dynamic programming. Of the ways to group the first pieces, one that leaves the network free
    no sooner, and the core no less delayed, than another can be forgotten: every end that follows
    from it is no sooner either (dgc/timeline.py is monotone in both).
    """
    best: list[list[Label]] = [[Label(State(backward), None)]]
    for stop in range(1, count + 1):
        found = []
        for first in range(stop):
            passage = together(first, stop)
            found += [Label(label.state.after(passage), (stop, label)) for label in best[first]]
        best.append(undominated(found))
    label = min(best[count], key=lambda each: (each.state.end, each.state.spent))
    stops: list[int] = []
    while label.stops is not None:
        stop, label = label.stops
        stops.append(stop)
    return stops[::-1]


def undominated(labels: list[Label]) -> list[Label]:
    """Those than which no other is at least as good in both respects."""
    kept: list[Label] = []
    for label in sorted(labels, key=lambda each: each.state):
        if not kept or label.state.spent < kept[-1].state.spent:
            kept.append(label)
    return kept
