"""From what was measured to the time of a step. Arithmetic only: nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dgc.codec import Codec
from dgc.costmodel import Calibration, Line, rounds
from dgc.exchanges import Exchange
from dgc.exchanges.base import ring_bytes
from dgc.timeline import Passage, end


@dataclass(frozen=True)
class Setting:
    """What a step is to be predicted for.

    rate: of each worker's link, bit/s. latency: seconds a message, beside those of the host.
    sharing: workers that share a core, so that what a processor does takes so many times longer.
    """

    workers: int
    rate: float
    latency: float
    sharing: float = 1.0


class Step(NamedTuple):
    """Forward and backward pass of one worker that is alone, in seconds after their begin.

    arrivals: by parameter, when its gradient is complete. backward: when all is over.
    """

    arrivals: Mapping[str, float]
    backward: float

    def scaled(self, factor: float) -> Step:
        """One that takes ``factor`` times as long, in all its parts."""
        arrivals = {name: factor * seconds for name, seconds in self.arrivals.items()}
        return Step(arrivals, factor * self.backward)


class Counts(NamedTuple):
    """What an exchange comes to among some workers, whatever the bucket.

    rounds: messages one after another on the longest way from the first worker to the last.
    share: bytes on that way, over those that ``Exchange.bytes_sent`` says a worker sends. A tree
        sends down what came up, one after the other: 2.
    handled: messages that the busiest worker encodes or decodes. sends: that the busiest one sends.
    """

    rounds: float
    share: float
    handled: float
    sends: float


@dataclass(frozen=True)
class Growth:
    """An exchange's counts at any number of workers, from those at some numbers."""

    counted: Mapping[int, Counts]

    def at(self, workers: int) -> Counts:
        """As counted, or what their growth leads to; a share stays as it was at the most workers.

        Only doublings of the fewest workers show the growth: among others it may take a round more.
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
    """A bucket. names: of its parameters. k: of its ``n`` elements that are sent; ``n``: dense.

    sparse: processor seconds of its path by messages handled; dense: of the path that sends all.
    Either may be None where no number of workers asks for it.
    """

    names: Sequence[str]
    numel: int
    k: int
    sparse: Line | None
    dense: Line | None


@dataclass(frozen=True)
class Measured:
    """What was measured of one composition.

    overlaps: whether buckets may start while the backward pass goes on.
    optimizer: seconds of its update.
    parts: its buckets, in the order in which they are sent.
    """

    name: str
    exchange: Exchange
    codec: Codec
    overlaps: bool
    optimizer: float
    parts: Sequence[Part]
    growth: Growth


def predict(
    measured: Measured, step: Step, host: Calibration, setting: Setting, slowdown: float
) -> float:
    """Seconds of a training step: of ``step``, of all exchanges, and of the optimizer.

    slowdown: what ``step`` and the optimizer take longer there than they did here.
    """
    step = step.scaled(slowdown)
    passages = [
        Passage(ready(part, step, measured.overlaps), *cost(part, measured, host, setting))
        for part in measured.parts
    ]
    return end(passages, step.backward) + slowdown * measured.optimizer


def ready(part: Part, step: Step, overlaps: bool) -> float:
    """When the last of a bucket's gradients comes; parameters that take no part come at the end."""
    if not overlaps:
        return step.backward
    return max(step.arrivals.get(name, step.backward) for name in part.names)


def cost(
    part: Part, measured: Measured, host: Calibration, setting: Setting
) -> tuple[float, float, float]:
    """A bucket's processor, moving and network seconds."""
    workers, busy = setting.workers, setting.sharing
    if is_sparse(part.numel, part.k, measured.exchange, measured.codec, workers):
        counts, line = measured.growth.at(workers), part.sparse
        sent = measured.exchange.bytes_sent(part.numel, part.k, measured.codec, workers)
    else:
        counts, line = of_a_ring(workers), part.dense
        sent = ring_bytes(part.numel, workers)
    assert line is not None
    return (
        busy * line.at(counts.handled),
        moving_line(counts, host, setting).at(sent),
        exchange_line(counts, host, setting).at(sent),
    )


def of_a_ring(workers: int) -> Counts:
    """Of a dense all-reduce."""
    messages = 2 * (workers - 1)
    return Counts(messages, 1.0, 0, messages)


def exchange_line(counts: Counts, host: Calibration, setting: Setting) -> Line:
    """Seconds of an exchange by the bytes that a worker sends."""
    a_message = setting.sharing * host.network.alpha + setting.latency
    a_byte = max(8 / setting.rate, setting.sharing * host.network.beta)
    return Line(a_message * counts.rounds, a_byte * counts.share)


def moving_line(counts: Counts, host: Calibration, setting: Setting) -> Line:
    """Of an exchange, the busiest processor's seconds by the bytes that a worker sends."""
    busy, processor = setting.sharing, host.processor
    return Line(busy * processor.alpha * counts.sends, busy * processor.beta)


def is_sparse(numel: int, k: int, exchange: Exchange, codec: Codec, workers: int) -> bool:
    """Whether the reducer would send ``k`` of so many elements: where that is less than all."""
    return k < numel and exchange.pays(numel, k, codec, workers)


def extrapolate(sizes: Sequence[int], values: Sequence[float], workers: int) -> float:
    """What grows with ⌈log2 P⌉, with P, or with both, at another P: by least squares, which leave
    nothing over where it does just that; at least 0."""

    def terms(size: int) -> list[float]:
        return [1.0, rounds(size), size]

    weights, *_ = np.linalg.lstsq(np.array([terms(size) for size in sizes]), values, rcond=None)
    return max(float(np.dot(terms(workers), weights)), 0.0)


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (x, seconds) by least squares. It does not fall: what is handled costs."""
    xs, ys = zip(*points, strict=True)
    middle, mean = sum(xs) / len(xs), sum(ys) / len(ys)
    width = sum((x - middle) ** 2 for x in xs)
    each = sum((x - middle) * y for x, y in points) / width if width else 0.0
    each = max(each, 0.0)
    return Line(max(mean - each * middle, 0.0), each)
