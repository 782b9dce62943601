"""Local steps: what a round of them exchanges, and how much of that a step pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgc.timeline import BucketTimes, end
from utils.training.averaging import Averaging, EveryStep, OuterSteps, StreamingOuterSteps


@dataclass(frozen=True)
class Rounds:
    """The rounds of a stack with local steps.

    Attributes:
        every: H, inner steps of a round, which exchanges each movement once.
        fragments: F, parts of the model that are exchanged at different times.
        delay: τ, inner steps while a fragment travels.
    """

    every: int
    fragments: int = 1
    delay: int = 0

    def share(
        self, buckets: Sequence[BucketTimes], alone: float, outer: float, pipelined: bool
    ) -> float:
        """Return what a round adds to each of its steps, in seconds.

        All movements are there when an exchange begins. The processor time of the buckets is never
        hidden: it is taken from the core that computes the inner steps.

        Args:
            buckets: All of the model, each ready at 0.
            alone: Seconds of an inner step.
            outer: Seconds of the outer optimizer's update.
            pipelined: As in ``dgc.timeline.end``.
        """
        work = float(sum(each.processor + each.moving for each in buckets))
        travel = max(end(buckets, 0.0, pipelined) - work, 0.0) / self.fragments
        waited = self.fragments * max(travel - self.delay * alone, 0.0)
        return (work + waited + outer) / self.every


def rounds_of(averaging: Averaging) -> Rounds | None:
    """Return the rounds of a stack; None where gradients are averaged in every step.

    Raises:
        ValueError: For local steps that are not predicted.
    """
    if isinstance(averaging, EveryStep):
        return None
    if not isinstance(averaging, OuterSteps):
        raise ValueError('steps of ZeroOneAdam are not predicted: leave out configs/zeroone/')
    if averaging.moments:
        raise ValueError(
            'averages of moments are not predicted: leave out configs.train.averaging.moments'
        )
    if isinstance(averaging, StreamingOuterSteps):
        return Rounds(averaging.every, averaging.fragments, averaging.delay)
    return Rounds(averaging.every)
