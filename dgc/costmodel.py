"""How long what an engine does takes, in closed form: the α-β model of a network.

Of P workers, each with a full-duplex link of its own into a switch that never is the bottleneck.
What α and β are between two hosts, or within one, ``calibrate`` measures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:  # an engine may well use this
    from dgc.engines.base import Engine

SIZES = tuple(4**power for power in range(5, 13))  # bytes: 1 kB to 16 MB
REPEATS = 9
LEAST = 1e-6  # seconds: what a clock may show for nothing


@dataclass(frozen=True)
class Network:
    """A message of m bytes takes ``α + βm`` (Hockney 1994).

    Collectives as Thakur, Rabenseifner and Gropp (IJHPCA 2005, section 4) write them, without the
    time of adding up. All times in seconds.

    alpha: seconds a message; beta: seconds a byte.
    """

    alpha: float
    beta: float

    @classmethod
    def of(cls, bits_per_second: float, latency: float) -> Network:
        """Links of this rate, and a latency in seconds."""
        return cls(alpha=latency, beta=8 / bits_per_second)

    def message(self, nbytes: float) -> float:
        """``α + βm``: from one worker to another."""
        return self.alpha + self.beta * nbytes

    def all_gather(self, nbytes: float, workers: int) -> float:
        """``(P-1)(α + βm)``: every worker's m bytes pass round a ring."""
        return (workers - 1) * self.message(nbytes)

    def all_reduce(self, nbytes: float, workers: int) -> float:
        """``2(P-1)(α + βN/P)``: N bytes, in P parts, pass round a ring twice."""
        return 2 * (workers - 1) * self.message(nbytes / workers)

    def broadcast(self, nbytes: float, workers: int) -> float:
        """``⌈log2 P⌉(α + βN)``: N bytes go down a binomial tree."""
        return rounds(workers) * self.message(nbytes)

    def barrier(self, workers: int) -> float:
        """``⌈log2 P⌉α``: empty messages, each time over twice the distance."""
        return rounds(workers) * self.alpha


def rounds(workers: int) -> int:
    """``⌈log2 P⌉``: in which what one worker knows reaches all."""
    return (workers - 1).bit_length()


class Line(NamedTuple):
    """``a + b·x``, in seconds: fixed, and each x."""

    fixed: float
    each: float

    def at(self, x: float) -> float:
        """Its height there."""
        return self.fixed + self.each * x

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> tuple[Line, float]:
        """The line nearest to some (x, seconds), and its error: root of the mean square, relative.

        By least squares of relative errors, so that small x count as much as large ones; neither
        part is negative.
        """
        xs, seconds = zip(*points, strict=True)
        weights, error = least_squares([[1.0, x] for x in xs], seconds)
        return cls(*weights), error


@dataclass(frozen=True)
class Calibration:
    """What moving bytes through an engine takes.

    network: in seconds. processor: the same in seconds of all of a worker's threads, for what it
    sends while it receives as much. error: of the network's times, relative, root of the mean
    square.
    """

    network: Network
    processor: Network
    error: float


class Sample(NamedTuple):
    """One engine call of one worker. messages, sent: how many, and their bytes."""

    messages: float
    sent: float
    seconds: float
    processor: float


def calibrate(engine: Engine, sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> Calibration:
    """Time messages round a ring and all-reduces, of each size, in bytes; medians of the slowest.

    The fit is by least squares of relative errors, so that small messages count as much as large
    ones. A collective, with the same result on all workers; there must be two.
    """
    after, before = (engine.rank + 1) % engine.size, (engine.rank - 1) % engine.size
    samples = []
    for size in sizes:
        numbers = torch.zeros(-(-size // 4))
        samples.append(sample(engine, partial(engine.send_recv, numbers, after, before), repeats))
        samples.append(sample(engine, partial(engine.all_reduce, numbers), repeats))
    network, error = fit(samples, [each.seconds for each in samples])
    processor, _ = fit(samples, [each.processor for each in samples])
    return Calibration(network, processor, error)


def sample(engine: Engine, call: Callable[[], object], repeats: int) -> Sample:
    """Medians of a call's times over the repeats; of wall-clock time, the slowest worker's."""
    call()  # which opens connections
    seconds, processor = [], []
    messages, sent = engine.traffic.messages, engine.traffic.sent
    call()
    messages, sent = engine.traffic.messages - messages, engine.traffic.sent - sent
    for _ in range(repeats):
        engine.barrier()
        start, used = time.perf_counter(), time.process_time()
        call()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    ours = torch.tensor([statistics.median(seconds), statistics.median(processor)]).double()
    everybodys = engine.all_gather(ours)  # [P, 2]
    return Sample(messages, sent, float(everybodys[:, 0].max()), float(everybodys[:, 1].mean()))


def fit(samples: Sequence[Sample], seconds: Sequence[float]) -> tuple[Network, float]:
    """The network on which the samples would take about so long, and its relative error."""
    weights, error = least_squares([[each.messages, each.sent] for each in samples], seconds)
    return Network(*weights), error


def least_squares(
    rows: Sequence[Sequence[float]], seconds: Sequence[float]
) -> tuple[list[float], float]:
    """The two weights, neither negative, with which rows ``[m, 2]`` come nearest to ``seconds``.

    By relative errors, of which the second number returned is the root of the mean square.
    """
    times = torch.tensor(seconds, dtype=torch.float64).clamp(min=LEAST)
    relative = torch.tensor(rows, dtype=torch.float64) / times[:, None]
    ones = torch.ones(len(rows), 1, dtype=torch.float64)
    weights = torch.linalg.lstsq(relative, ones).solution.view(-1)
    if weights.min() < 0:  # then it is nearest where one of them is 0
        alone = (relative.sum(0) / relative.square().sum(0).clamp(min=1e-300)).diag()
        weights = min(alone, key=lambda each: float((relative @ each - 1).square().sum()))
    error = float((relative @ weights - 1).square().mean().sqrt())
    return weights.tolist(), error
