"""What a bucket's path costs the processor: measured on simulated workers, which take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bench.worker import free_memory
from dgc import Composition, RatioSchedule, simulate
from dgc.buckets import Bucket
from dgc.compressors.base import keep
from dgc.costmodel import Line
from dgc.engines import SimulatedEngine
from dgc.planner import Named
from dgc.planner.calibration import heavy_tailed
from dgc.reducer import Reducer
from tools.plan.compositions import Make, UnfitError, sizes
from tools.plan.meter import Counting, Metered
from tools.plan.predict import fit, is_sparse

DOUBLINGS = 3  # 2, 4 and 8 workers
WARMUP, STEPS = 2, 5
BYTES = 20  # that a worker takes for an element: gradient, two buffers, and two to draw from
SHARE = 0.8  # of the free memory that may be used


class Blueprint(NamedTuple):
    """A bucket that is yet to be made. schedule: None where it is always dense."""

    parameters: Sequence[Named]
    schedule: RatioSchedule | None

    @property
    def numel(self) -> int:
        """Its elements."""
        return sum(parameter.numel() for _, parameter, _ in self.parameters)

    @property
    def k(self) -> int:
        """Elements that are sent once the warm-up is over."""
        return self.numel if self.schedule is None else keep(self.numel, self.schedule.ratio)

    def bucket(self, composition: Composition, ratio: float) -> Bucket:
        """One worker's."""
        bucket = Bucket(self.parameters, self.schedule, composition.memory.buffers)
        bucket.ratio = ratio
        return bucket


def blueprints(composition: Composition, trained: Sequence[Named]) -> list[Blueprint]:
    """The buckets of a model, in the order in which they are sent."""
    buckets = composition.planner.plan(
        trained, composition.rules, composition.schedule, composition.memory.buffers
    )
    return [Blueprint([member[:3] for member in b.members], b.schedule) for b in buckets]


def sparse_line(make: Make, blueprint: Blueprint) -> Line:
    """Seconds by messages handled, among those numbers of workers for which the memory suffices.

    Raises UnfitError where it does for none.
    """
    composition, numel, k = make(), blueprint.numel, blueprint.k
    exchange, codec = composition.exchange, composition.codec
    few = sizes(exchange, DOUBLINGS)
    few = [size for size in few if is_sparse(numel, k, exchange, codec, size)] or few[:1]
    assert blueprint.schedule is not None
    ratio = blueprint.schedule.ratio
    return fit([point(make, blueprint, size, ratio) for size in affordable(few, numel)])


def dense_line(make: Make, blueprint: Blueprint) -> Line:
    """Seconds of the path that sends all: the same among any number of workers.

    Raises UnfitError where the memory does not suffice.
    """
    (fewest,) = affordable(sizes(make().exchange, 1), blueprint.numel)
    _, seconds = point(make, blueprint, fewest, ratio=1.0)
    return Line(seconds, 0.0)


def affordable(few: Sequence[int], numel: int) -> list[int]:
    """Those numbers of workers whose buckets fit into the free memory. Raises UnfitError."""
    free = SHARE * free_memory()
    if few[0] * BYTES * numel > free:
        raise UnfitError(
            f'a bucket of {numel:,} elements takes {few[0] * BYTES * numel / 1e9:.1f} GB to be '
            f'measured, {free / 1e9:.1f} GB may be used: plan on a larger machine'
        )
    return [size for size in few if size * BYTES * numel <= free]


def point(make: Make, blueprint: Blueprint, workers: int, ratio: float) -> tuple[int, float]:
    """How many messages the busiest of the workers handles in a step, and its seconds: the mean of
    those that are as busy."""
    with one_thread():
        ranks = simulate(workers, lambda engine: walk(make, blueprint, ratio, engine))
    most = max(handled for handled, _ in ranks)
    return most, statistics.mean(seconds for handled, seconds in ranks if handled == most)


def walk(
    make: Make, blueprint: Blueprint, ratio: float, engine: SimulatedEngine
) -> tuple[int, float]:
    """One worker's messages and processor seconds in a step, without what is spent in the engine:
    medians over some steps."""
    composition, metered = make(), Metered(engine)
    codec = Counting(composition.codec)
    bucket = blueprint.bucket(composition, ratio)
    reducer = Reducer([bucket], replace(composition, codec=codec), metered)
    noise = heavy_tailed(bucket.numel, engine.rank).to(bucket.dtype)
    handled, seconds = [], []
    for step in range(WARMUP + STEPS):
        gradient = noise.roll(7919 * step)
        before, start = codec.handled, time.thread_time() - metered.processor
        hand_over(bucket, gradient)
        reducer.ready(0)
        reducer.synchronize()
        handled.append(codec.handled - before)
        seconds.append(time.thread_time() - metered.processor - start)
    return statistics.median_high(handled[WARMUP:]), statistics.median(seconds[WARMUP:])


def hand_over(bucket: Bucket, gradient: Tensor) -> None:
    """At the price of the optimizer's hooks: a dense bucket has its parameters' gradients copied,
    unless there is only one; others borrow them."""
    if bucket.schedule is None and len(bucket.members) > 1:
        bucket.gradient.copy_(gradient)
    else:
        bucket.adopt(gradient)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on one, so that what a thread takes is what there is to do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
