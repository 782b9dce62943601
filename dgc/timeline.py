"""Predicted times of the buckets of a step, on a rank with one processor core and one link.

The core executes the forward pass, the backward pass, and the compression and decompression of
buckets. While the backward pass is running, the processing of a bucket gets half of the core, since
the two run in one thread each. The link transfers one bucket at a time, in the order in which they
are sent. The message of a bucket is made when the bucket before it has been received; in a pipeline
(``Engine.beside``), when the message of the bucket before it has been made, so that it is made
while that one travels. Arithmetic only: nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# One time, or an array of times: those of many buckets, each after a history of its own.
Times: TypeAlias = float | NDArray[np.float64]


class BucketTimes(NamedTuple):
    """Times of one bucket, in seconds; or of several, as arrays.

    Attributes:
        ready: From the start of the step until its gradients are complete, if the core does nothing
            but the forward and the backward pass.
        processor: Processor time of compressing, encoding, decoding and adding up.
        moving: Processor time of moving its bytes to and from the network.
        network: From the first byte sent to the last byte received.
    """

    ready: Times
    processor: Times
    moving: Times
    network: Times


class Progression(NamedTuple):
    """State of a rank that has exchanged some buckets, in seconds from the start of the step.

    With arrays, the states after several histories, element by element.

    Attributes:
        backward: When the backward pass would end without any buckets.
        free: When the last exchange ends, so that the link is free.
        spent: Processor time spent on buckets, by which all later computation is delayed.
        idle: When the thread that makes messages is free for the next one.
        pipelined: Whether a message may be made while the one before it travels.
    """

    backward: float
    free: Times = 0.0
    spent: Times = 0.0
    idle: Times = 0.0
    pipelined: bool = False

    def after(self, bucket: BucketTimes) -> Progression:
        """Return the state after one more bucket."""
        free = self.sent(bucket) + bucket.network
        spent = self.spent + bucket.processor + bucket.moving
        idle = self.made(bucket) if self.pipelined else free
        return self._replace(free=free, spent=spent, idle=idle)

    def begin(self, bucket: BucketTimes) -> Times:
        """Return when the processing of one more bucket begins: when its gradients are complete and
        the thread that makes messages is free."""
        return later(bucket.ready + self.spent, self.idle)

    def sent(self, bucket: BucketTimes) -> Times:
        """Return when the message of one more bucket is sent: when it is made and the link is
        free."""
        return later(self.made(bucket), self.free)

    def made(self, bucket: BucketTimes) -> Times:
        """Return when the message of one more bucket is made."""
        begin = self.begin(bucket)
        left = later(self.backward + self.spent - begin, 0.0)
        # Work during the backward pass has half of the core, so it takes twice as long.
        return begin + bucket.processor + earlier(bucket.processor, left)

    @property
    def end(self) -> Times:
        """When the backward pass and all exchanges have ended."""
        return later(self.backward + self.spent, self.free)


def later(one: Times, other: Times) -> Times:
    """Return the later of two times, element by element for arrays."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return max(one, other)


def earlier(one: Times, other: Times) -> Times:
    """Return the earlier of two times, element by element for arrays."""
    return -later(-one, -other)


class Span(NamedTuple):
    """Times of one bucket's processing, in seconds from the start of the step.

    Attributes:
        begin: Compression begins.
        made: The message is made.
        sent: It is sent: at once, unless the one before it is still under way.
        end: The result of the exchange has been received.
    """

    begin: float
    made: float
    sent: float
    end: float


def spans(buckets: Sequence[BucketTimes], backward: float, pipelined: bool = False) -> list[Span]:
    """Return the span of each bucket.

    Args:
        buckets: In the order in which they are sent.
        backward: When the backward pass would end without any buckets.
        pipelined: As in ``Progression``.
    """
    state, found = Progression(backward, pipelined=pipelined), []
    for bucket in buckets:
        times = state.begin(bucket), state.made(bucket), state.sent(bucket)
        state = state.after(bucket)
        found.append(Span(*map(float, (*times, state.free))))
    return found


def end(buckets: Sequence[BucketTimes], backward: float, pipelined: bool = False) -> float:
    """Return when the backward pass and all exchanges have ended, in seconds from the start of the
    step.

    Args:
        buckets: In the order in which they are sent.
        backward: When the backward pass would end without any buckets.
        pipelined: As in ``Progression``.
    """
    state = Progression(backward, pipelined=pipelined)
    for bucket in buckets:
        state = state.after(bucket)
    return float(state.end)
