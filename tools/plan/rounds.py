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
        momentum, nesterov: Of the outer SGD.
        after: So many first steps each end with an exchange; they are not predicted.
    """

    every: int
    fragments: int = 1
    delay: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    after: int = 0

    def share(
        self, buckets: Sequence[BucketTimes], alone: float, outer: float, pipelined: bool
    ) -> float:
        """Return what a round adds to each of its steps, in seconds.

        All movements are there when an exchange begins. Fragments share one link, so at most all
        steps of a round hide what travels. The processor time of the buckets is never hidden: it is
        taken from the core that computes the inner steps.

        Args:
            buckets: All of the model, each ready at 0.
            alone: Seconds of an inner step.
            outer: Seconds of the outer optimizer's update.
            pipelined: As in ``dgc.timeline.end``.
        """
        work = float(sum(each.processor + each.moving for each in buckets))
        hidden = min(self.fragments * self.delay, self.every) * alone
        waited = max(end(buckets, 0.0, pipelined) - work - hidden, 0.0)
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
    fragments, delay = 1, 0
    if isinstance(averaging, StreamingOuterSteps):
        fragments, delay = averaging.fragments, averaging.delay
    if averaging.every < 1:
        raise ValueError(f'configs.train.averaging.every is at least 1, got {averaging.every}')
    if fragments < 1:
        raise ValueError(f'configs.train.averaging.fragments is at least 1, got {fragments}')
    if not 0 <= delay < averaging.every:
        raise ValueError(
            f'configs.train.averaging.delay is at least 0 and below every = {averaging.every}, got '
            f'{delay}'
        )
    outer = averaging.momentum, averaging.nesterov
    return Rounds(averaging.every, fragments, delay, *outer, averaging.after)
