"""The α-β model of a network: closed forms of the time of an engine's calls, and their calibration.

Each of P ranks has a full-duplex link of its own into a switch that is never the bottleneck.
``calibrate`` measures α and β between hosts, or within one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:  # engines import this module
    from dgc.engines.base import Engine

SIZES = tuple(4**power for power in range(5, 13))  # bytes: 1 kB to 16 MB
REPEATS = 9
LEAST = 1e-6  # seconds: shorter times are below what the clock resolves


@dataclass(frozen=True)
class Network:
    """Predicts the time of a message of m bytes as ``α + βm`` (Hockney 1994).

    Collectives follow Thakur, Rabenseifner and Gropp (IJHPCA 2005, section 4), without the time of
    the additions. All times are in seconds, all sizes in bytes.

    Attributes:
        alpha: seconds per message.
        beta: seconds per byte.
    """

    alpha: float
    beta: float

    @classmethod
    def of(cls, bits_per_second: float, latency: float) -> Network:
        """The network whose links have this rate, and this latency in seconds."""
        return cls(alpha=latency, beta=8 / bits_per_second)

    def message(self, nbytes: float) -> float:
        """``α + βm``: m bytes from one rank to another."""
        return self.alpha + self.beta * nbytes

    def all_gather(self, nbytes: float, workers: int) -> float:
        """``(P-1)(α + βm)``: a ring all-gather of m bytes per rank."""
        return (workers - 1) * self.message(nbytes)

    def all_reduce(self, nbytes: float, workers: int) -> float:
        """``2(P-1)(α + βN/P)``: a ring all-reduce of N bytes, as reduce-scatter and all-gather."""
        return 2 * (workers - 1) * self.message(nbytes / workers)

    def broadcast(self, nbytes: float, workers: int) -> float:
        """``⌈log2 P⌉(α + βN)``: N bytes along a binomial tree."""
        return rounds(workers) * self.message(nbytes)

    def barrier(self, workers: int) -> float:
        """``⌈log2 P⌉α``: a dissemination barrier, whose messages are empty."""
        return rounds(workers) * self.alpha


def rounds(workers: int) -> int:
    """``⌈log2 P⌉``: the rounds in which a message from one rank can reach all."""
    return (workers - 1).bit_length()


class Line(NamedTuple):
    """A time linear in x: ``fixed + each·x``, in seconds."""

    fixed: float
    each: float

    def at(self, x: float) -> float:
        """The time for ``x``, in seconds."""
        return self.fixed + self.each * x

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> tuple[Line, float]:
        """Fit a line to points (x, seconds) by least squares of relative errors.

        Relative errors, so that small x count as much as large ones. Neither coefficient is
        negative. From points of one x, the time is taken for the same at every x.

        Returns:
            The line, and the root mean square of its relative errors.
        """
        xs, seconds = zip(*points, strict=True)
        varies = len(set(xs)) > 1
        weights, error = least_squares([[1.0, x * varies] for x in xs], seconds)
        return cls(*weights), error


@dataclass(frozen=True)
class Calibration:
    """The measured cost of moving bytes through an engine.

    Attributes:
        network: in seconds of wall-clock time.
        processor: in seconds of processor time of all threads of one rank, per message and byte
            sent while as much is received.
        error: root mean square of the relative errors of ``network``.
    """

    network: Network
    processor: Network
    error: float


class Sample(NamedTuple):
    """One measured engine call.

    Attributes:
        messages, sent: messages and bytes that one rank sends.
        seconds: wall-clock time on the slowest rank.
        processor: processor time, in seconds, mean over the ranks.
    """

    messages: float
    sent: float
    seconds: float
    processor: float


def calibrate(engine: Engine, sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> Calibration:
    """Measure α and β of an engine with messages around a ring and all-reduces.

    Every rank must call this, and there must be at least two. All get the same result. The fit is
    by least squares of relative errors, so that small messages count as much as large ones.

    Args:
        sizes: of the messages, in bytes.
        repeats: of each call; the median counts.
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
    """Time a collective call: medians over the repeats, see :class:`Sample`."""
    call()  # opens connections
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
    medians = torch.tensor([statistics.median(seconds), statistics.median(processor)]).double()
    # A collective lasts as long as on its slowest rank.
    gathered = engine.all_gather(medians)  # [P, 2]
    return Sample(messages, sent, float(gathered[:, 0].max()), float(gathered[:, 1].mean()))


def fit(samples: Sequence[Sample], seconds: Sequence[float]) -> tuple[Network, float]:
    """The network that predicts ``seconds`` for the samples best, and its relative error."""
    weights, error = least_squares([[each.messages, each.sent] for each in samples], seconds)
    return Network(*weights), error


def least_squares(
    rows: Sequence[Sequence[float]], seconds: Sequence[float]
) -> tuple[list[float], float]:
    """Fit ``rows[m, 2] · weights[2] ≈ seconds[m]`` with weights that are not negative.

    Returns:
        The weights that minimise the squared relative errors, and the root mean square of these.
    """
    times = torch.tensor(seconds, dtype=torch.float64).clamp(min=LEAST)
    relative = torch.tensor(rows, dtype=torch.float64) / times[:, None]
    ones = torch.ones(len(rows), 1, dtype=torch.float64)
    weights = torch.linalg.lstsq(relative, ones).solution.view(-1)
    # The problem is convex: if the unconstrained minimum has a negative weight, the constrained
    # one lies where a weight is 0. So each column is fitted alone, and the better one counts.
    if weights.min() < 0:
        alone = (relative.sum(0) / relative.square().sum(0).clamp(min=1e-300)).diag()
        weights = min(alone, key=lambda each: float((relative @ each - 1).square().sum()))
    error = float((relative @ weights - 1).square().mean().sqrt())
    return weights.tolist(), error
