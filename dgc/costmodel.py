"""The α-β model of a network: predicts the time of an engine's calls in closed form.

The model assumes that each of P ranks has its own full-duplex link to a switch that is never the
bottleneck. ``calibrate`` measures α and β between hosts, or within one.
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
    """Predicts the time of a message of m bytes as ``α + βm`` (Hockney, 1994).

    Collectives follow Thakur, Rabenseifner and Gropp (IJHPCA 2005, section 4), without the time of
    the additions. All times are in seconds, all sizes in bytes.

    Attributes:
        alpha: Seconds per message.
        beta: Seconds per byte.
    """

    alpha: float
    beta: float

    @classmethod
    def of(cls, bits_per_second: float, latency: float) -> Network:
        """Return the network whose links have this rate, and this latency in seconds."""
        return cls(alpha=latency, beta=8 / bits_per_second)

    def message(self, nbytes: float) -> float:
        """Return ``α + βm``: m bytes from one rank to another."""
        return self.alpha + self.beta * nbytes

    def all_gather(self, nbytes: float, workers: int) -> float:
        """Return ``(P-1)(α + βm)``: a ring all-gather of m bytes per rank."""
        return (workers - 1) * self.message(nbytes)

    def all_reduce(self, nbytes: float, workers: int) -> float:
        """Return ``2(P-1)(α + βN/P)``: a ring all-reduce of N bytes."""
        return 2 * (workers - 1) * self.message(nbytes / workers)

    def broadcast(self, nbytes: float, workers: int) -> float:
        """Return ``⌈log2 P⌉(α + βN)``: N bytes along a binomial tree."""
        return rounds(workers) * self.message(nbytes)

    def path(self, messages: float, nbytes: float) -> float:
        """Return ``α·messages + β·nbytes``: messages one after another, of m bytes in all."""
        return self.alpha * messages + self.beta * nbytes

    def barrier(self, workers: int) -> float:
        """Return ``⌈log2 P⌉α``: a dissemination barrier, whose messages are empty."""
        return rounds(workers) * self.alpha


def rounds(workers: int) -> int:
    """Return ``⌈log2 P⌉``: the rounds in which a message from one rank reaches all."""
    return (workers - 1).bit_length()


class Line(NamedTuple):
    """A time that is linear in x: ``fixed + each·x``, in seconds."""

    fixed: float
    each: float

    def at(self, x: float) -> float:
        """Return the time for ``x``, in seconds."""
        return self.fixed + self.each * x

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> tuple[Line, float]:
        """Fit a line to points by least squares of relative errors.

        Relative errors give small x the same weight as large ones. Neither coefficient is negative.
        Where all points have the same x, the line is constant.

        Args:
            points: Pairs of x and seconds.

        Returns:
            The line, and the root mean square of its relative errors.
        """
        xs, seconds = zip(*points, strict=True)
        varies = len(set(xs)) > 1
        weights, error = least_squares([[1.0, x * varies] for x in xs], seconds)
        return cls(*weights), error


@dataclass(frozen=True)
class Calibration:
    """Measured cost of moving bytes through an engine.

    Attributes:
        network: In wall-clock time.
        processor: In processor time of all threads of one rank, per message and byte sent while as
            many are received.
        error: Root mean square of the relative errors of ``network``.
    """

    network: Network
    processor: Network
    error: float


class Sample(NamedTuple):
    """One measured engine call.

    Attributes:
        messages, sent: Messages and bytes that one rank sends.
        seconds: Wall-clock time of the slowest rank.
        processor: Processor time in seconds, mean over the ranks.
    """

    messages: float
    sent: float
    seconds: float
    processor: float


def calibrate(engine: Engine, sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> Calibration:
    """Measure α and β of an engine, by sending messages around a ring and by all-reduces.

    A collective, for at least two ranks; the result is the same on all of them. The fit is by least
    squares of relative errors, which give small messages the same weight as large ones.

    Args:
        engine: What is measured.
        sizes: Bytes of the messages.
        repeats: How often each call is timed; the median is used.
    """
    after, before = (engine.rank + 1) % engine.size, (engine.rank - 1) % engine.size
    samples = []
    for size in sizes:
        numbers = torch.zeros(-(-size // 4), dtype=torch.float32)
        samples.append(sample(engine, partial(engine.send_recv, numbers, after, before), repeats))
        samples.append(sample(engine, partial(engine.all_reduce, numbers), repeats))
    network, error = fit(samples, [each.seconds for each in samples])
    processor, _ = fit(samples, [each.processor for each in samples])
    return Calibration(network, processor, error)


def sample(engine: Engine, call: Callable[[], object], repeats: int) -> Sample:
    """Measure a collective call: medians over ``repeats`` calls."""
    call()  # the first call of an engine may open connections
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
    ours = [statistics.median(seconds), statistics.median(processor)]
    medians = torch.tensor(ours, dtype=torch.float64)
    # A collective lasts as long as on its slowest rank.
    gathered = engine.all_gather(medians)  # [P, 2]
    return Sample(messages, sent, float(gathered[:, 0].max()), float(gathered[:, 1].mean()))


def fit(samples: Sequence[Sample], seconds: Sequence[float]) -> tuple[Network, float]:
    """Return the network that fits ``seconds`` of the samples best, and its relative error."""
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
