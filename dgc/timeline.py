"""When the buckets of a step come through, on a worker with one core and one link.

The core makes the forward and the backward pass, and whatever the paths of the buckets cost it on
the way. While the backward pass goes on, a path has half of the core, as of two threads each has.
Buckets go down their path one after another, as one thread takes them, so the link carries one at a
time. Arithmetic only: nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Passage(NamedTuple):
    """One bucket's way, in seconds.

    ready: after the step's begin, when its gradients are complete, if nothing else is done.
    processor: compress, encode, decode, add up. moving: the processor's part in moving its bytes.
    network: from the first byte sent to the last received.
    """

    ready: float
    processor: float
    moving: float
    network: float


class State(NamedTuple):
    """Of a worker that has taken some buckets down their path, in seconds after the step's begin.

    backward: when the backward pass would end if there were no buckets.
    free: when the last of them was through.
    spent: that the core has spent on them, so that what it does else comes as much later.
    """

    backward: float
    free: float = 0.0
    spent: float = 0.0

    def after(self, passage: Passage) -> State:
        """With one more: it waits for its gradients, and for the bucket before it."""
        return State(
            self.backward,
            self.sent(passage) + passage.network,
            self.spent + passage.processor + passage.moving,
        )

    def begin(self, passage: Passage) -> float:
        """When one more would enter its path."""
        return max(passage.ready + self.spent, self.free)

    def sent(self, passage: Passage) -> float:
        """When its message would leave: what is done while the backward pass goes on takes twice as
        long."""
        begin = self.begin(passage)
        left = max(self.backward + self.spent - begin, 0.0)
        return begin + passage.processor + min(passage.processor, left)

    @property
    def end(self) -> float:
        """When all is over."""
        return max(self.backward + self.spent, self.free)


class Span(NamedTuple):
    """When a bucket enters its path, when its message leaves, and when the sum is there."""

    begin: float
    sent: float
    end: float


def spans(passages: Sequence[Passage], backward: float) -> list[Span]:
    """Of each bucket, in order; seconds after the step's begin. backward: see :class:`State`."""
    state, found = State(backward), []
    for passage in passages:
        begin, sent = state.begin(passage), state.sent(passage)
        state = state.after(passage)
        found.append(Span(begin, sent, state.free))
    return found


def end(passages: Sequence[Passage], backward: float) -> float:
    """When the backward pass and all exchanges have ended, in seconds after the step's begin."""
    state = State(backward)
    for passage in passages:
        state = state.after(passage)
    return state.end
