"""From measured costs to the time of a step. Arithmetic only: nothing is measured here.

The library predicts the times of a bucket (``dgc.planner.forecast``), and of a step from them
(``dgc.timeline``). Here are the costs of a number of workers and a network that are not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.compressors import Compressor
from dgc.costmodel import Calibration, Line, rounds
from dgc.exchanges import Exchange
from dgc.planner.forecast import FREE, Costs, Forecast, Route, Timing
from dgc.profile import Profile
from dgc.timeline import BucketTimes, end
from tools.plan.rounds import Rounds

NOTHING = Profile(0.0, 0.0, {})  # before an exchange of movements, which are all there
UNMEASURED = Line(math.nan, math.nan)  # so that a prediction that uses it is NaN


@dataclass(frozen=True)
class Setting:
    """What a step is predicted for.

    workers: their number. rate: of each worker's link, bit/s.
    latency: seconds per message, in addition to those of the host.
    sharing: workers that share a core; processor times are multiplied by it.
    pipelined: whether a bucket is compressed while the one before it is sent.
    """

    workers: int
    rate: float
    latency: float
    sharing: float = 1.0
    pipelined: bool = False


class Counts(NamedTuple):
    """What an exchange does with a number of workers, for any bucket.

    rounds: messages one after another on the longest path from the first worker to the last.
    share: bytes on that path, divided by ``Exchange.bytes_sent``. It is 2 for a tree, which sends
        the sum down the same path by which its parts came up.
    handled: messages that the busiest worker encodes or decodes.
    sends: messages that the busiest worker sends.
    """

    rounds: float
    share: float
    handled: float
    sends: float


@dataclass(frozen=True)
class Growth:
    """An exchange's counts with any number of workers, extrapolated from those with a few."""

    counted: Mapping[int, Counts]

    def at(self, workers: int) -> Counts:
        """The counts with a number of workers; beyond those counted, the share is that of the most.

        Only the doubles of the smallest number are extrapolated from: with other numbers, some
        exchanges take one round more.
        """
        if workers in self.counted:
            return self.counted[workers]
        doubles = {min(self.counted) << power for power in range(len(self.counted))}
        sizes = sorted(doubles & {*self.counted})
        every = [self.counted[size] for size in sizes]
        return Counts(
            extrapolate(sizes, [each.rounds for each in every], workers),
            every[-1].share,
            extrapolate(sizes, [each.handled for each in every], workers),
            extrapolate(sizes, [each.sends for each in every], workers),
        )


class Part(NamedTuple):
    """A bucket, with the processor times of its path.

    spec: its contents.
    sparse: processor seconds by messages handled; dense: of the dense path, which handles none.
        Each is None if no number of workers needs it.
    """

    spec: BucketSpec
    sparse: Line | None
    dense: Line | None


@dataclass(frozen=True)
class Measured:
    """What was measured of one composition.

    overlaps: whether buckets may start during the backward pass.
    optimizer: seconds of its update.
    parts: its buckets, in the order in which they are sent.
    always_sparse: see Composition.
    rounds: of local steps, if it exchanges their movements; None for gradients.
    outer: seconds of the update that follows such an exchange.
    """

    name: str
    exchange: Exchange
    codec: Codec
    compressor: Compressor
    overlaps: bool
    optimizer: float
    parts: Sequence[Part]
    growth: Growth
    always_sparse: bool = False
    rounds: Rounds | None = None
    outer: float = 0.0


def predict(
    measured: Measured, step: Profile, host: Calibration, setting: Setting, slowdown: float
) -> float:
    """Predict the seconds of a training step: both passes, all exchanges and the optimizer.

    Args:
        measured: of the composition, on this host.
        step: forward and backward pass, without exchange, on this host.
        host: cost of moving bytes on this host.
        setting: to predict for.
        slowdown: factor from the times of ``step`` and the optimizer here to those there.
    """
    step, update = scaled(step, slowdown), slowdown * measured.optimizer
    if measured.rounds is not None:
        alone, outer = step.backward + update, slowdown * measured.outer
        buckets = bucket_times(measured, NOTHING, host, setting)
        return alone + measured.rounds.share(buckets, alone, outer, setting.pipelined)
    buckets = bucket_times(measured, step, host, setting)
    return end(buckets, step.backward, setting.pipelined) + update


def bucket_times(
    measured: Measured, step: Profile, host: Calibration, setting: Setting
) -> list[BucketTimes]:
    """Predict the times of the buckets of a composition.

    Args:
        measured, host, setting: as of ``predict``.
        step: forward and backward pass that the buckets' gradients come from.
    """
    # A gradient without an arrival counts as complete at the end of the backward pass.
    arrivals = step.arrivals if measured.overlaps else {}
    buckets = []
    for part in measured.parts:
        timing = Timing(arrivals, step.backward, costs(part, measured.growth, host, setting))
        forecast = Forecast(
            timing,
            measured.exchange,
            measured.codec,
            measured.compressor,
            measured.always_sparse,
        )
        buckets.append(forecast.bucket_times(part.spec))
    return buckets


def scaled(step: Profile, factor: float) -> Profile:
    """A step all of whose parts take ``factor`` times as long."""
    arrivals = {name: factor * seconds for name, seconds in step.arrivals.items()}
    return Profile(factor * step.forward, factor * step.backward, arrivals)


def costs(part: Part, growth: Growth, host: Calibration, setting: Setting) -> Costs:
    """The costs of one bucket: processor times as measured, network times computed."""

    def of(line: Line, counts: Counts) -> Route:
        return route(Line(setting.sharing * line.at(counts.handled), 0.0), counts, host, setting)

    sparse = None if part.sparse is None else of(part.sparse, growth.at(setting.workers))
    dense = of(part.dense or UNMEASURED, ring_counts(setting.workers))
    return Costs(setting.workers, sparse, dense, copy=FREE)  # a copy is part of the measured path


def route(compress: Line, counts: Counts, host: Calibration, setting: Setting) -> Route:
    """The costs of the path of a bucket.

    Args:
        compress: processor seconds by elements.
        counts: of the exchange with the setting's number of workers.
        host: cost of moving bytes on this host.
        setting: to predict for.
    """
    busy, processor = setting.sharing, host.processor
    per_message = busy * host.network.alpha + setting.latency
    per_byte = max(8 / setting.rate, busy * host.network.beta)
    return Route(
        compress,
        exchange=Line(per_message * counts.rounds, per_byte * counts.share),
        moving=Line(busy * processor.alpha * counts.sends, busy * processor.beta),
    )


def ring_counts(workers: int) -> Counts:
    """The counts of a dense all-reduce by a ring."""
    messages = 2 * (workers - 1)
    return Counts(messages, 1.0, 0, messages)


def extrapolate(sizes: Sequence[int], values: Sequence[float], workers: int) -> float:
    """Extrapolate a count to another number of workers P, at least 0.

    Fits a + b·⌈log2 P⌉ + c·P by least squares, which is exact for counts that grow in this way.
    """

    def terms(size: int) -> list[float]:
        return [1.0, rounds(size), size]

    weights, *_ = np.linalg.lstsq(np.array([terms(size) for size in sizes]), values, rcond=None)
    return max(float(np.dot(terms(workers), weights)), 0.0)
