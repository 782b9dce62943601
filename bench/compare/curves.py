"""The quality of a run against the bytes that a worker sent, and against seconds on a link."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from bench.parity.training import SIMULATED
from bench.parity.workloads import Metric
from dgc.costmodel import Network
from tools.harness.algorithms import DENSE

Result = Mapping[str, Any]  # a line of the results


@dataclass(frozen=True)
class Clock:
    """What seconds are computed from.

    Attributes:
        link: Of each worker.
        compute: Seconds of a step of one worker without its messages, the same for all methods.
    """

    link: Network
    compute: float

    def seconds(self, steps: float, messages: float, nbytes: float, pace: Pace) -> float:
        """Return the seconds of some steps, with what is sent in them.

        A message begins when its step is computed, and the next step when it has come, unless the
        message may travel during further steps.

        Args:
            steps: Their number.
            messages, nbytes: Those that follow one another.
            pace: How often there are exchanges, and how many steps hide one.
        """
        computed, transfer = steps * self.compute, self.link.path(messages, nbytes)
        if not pace.hidden:
            return computed + transfer
        exchanges = steps * pace.exchanges
        waits = exchanges * max(0.0, transfer / exchanges - pace.hidden * self.compute)
        return max(computed + waits, transfer)  # the link carries one message at a time


@dataclass(frozen=True)
class Pace:
    """How often a method exchanges.

    Attributes:
        exchanges: In a step, each of a model or of a fragment of it.
        hidden: Further steps during which an exchange travels.
    """

    exchanges: float = 1.0
    hidden: int = 0

    @classmethod
    def of(cls, line: Result) -> Pace:
        """Return that of a run."""
        return cls(line['fragments'] / line['steps_per_exchange'], line['steps_hidden'])


@dataclass(frozen=True)
class Curve:
    """A run after each of its epochs.

    Attributes:
        values: The metric.
        megabytes: 10⁶ bytes that a worker has sent.
        seconds: On the link.
    """

    values: Sequence[float]
    megabytes: Sequence[float]
    seconds: Sequence[float]

    @classmethod
    def of(cls, line: Result, clock: Clock) -> Curve:
        """Return the curve of a run."""
        each, pace = line['of_epochs'], Pace.of(line)
        epochs = zip(each['steps'], each['path/messages'], each['path/bytes'], strict=True)
        seconds = [clock.seconds(steps, sent, size, pace) for steps, sent, size in epochs]
        megabytes = [nbytes / 1e6 for nbytes in each['bytes/sent']]
        return cls(line['curve'], [*accumulate(megabytes)], [*accumulate(seconds)])

    def seconds_to(self, target: float, metric: Metric) -> float | None:
        """Return when the run reached a quality; None where it did not.

        Between two evaluations the metric is taken to change in proportion to the seconds. A run
        that reached it in its first epoch did so at the end of that, and so did one whose value
        before was not finite.
        """
        points = [*zip(self.seconds, self.values, strict=True)]
        if metric.reaches(self.values[0], target):
            return self.seconds[0]
        for (before, worse), (after, better) in pairwise(points):
            if metric.reaches(better, target):
                share = (target - worse) / (better - worse) if math.isfinite(worse) else 1
                return before + (after - before) * share
        return None


def measured_compute(lines: Iterable[Result]) -> float | None:
    """Return the seconds of a step of one worker of dense training: those of the fastest run.

    Simulated workers take turns, so their seconds add up. None where there is no such run.
    """
    steps = [
        line['seconds'] / sum(line['of_epochs']['steps']) / line['workers']
        for line in lines
        if line['row'] == DENSE and line['engine'] == SIMULATED
    ]
    return min(steps, default=None)
