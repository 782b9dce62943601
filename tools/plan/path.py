"""Processor time of a bucket's path, measured on simulated workers, which run one at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dgc import Composition, RatioSchedule, simulate
from dgc.buckets import Bucket
from dgc.compressors.base import keep
from dgc.costmodel import Line
from dgc.engines import SimulatedEngine
from dgc.planner import Named
from dgc.planner.calibration import heavy_tailed
from dgc.reducer import Reducer
from tools.harness.machine import free_memory
from tools.plan.compositions import Make, UnfitError, sizes
from tools.plan.meter import Counting, Metered
from tools.plan.predict import fit

DOUBLINGS = 3  # 2, 4 and 8 workers
WARMUP, STEPS = 2, 5
BYTES = 20  # per element and worker: the gradient, two buffers, and two to draw gradients from
SHARE = 0.8  # fraction of the free memory that may be used
SHIFT = 7919  # elements by which the gradient is rotated from step to step


class Blueprint(NamedTuple):
    """The contents of a bucket, without storage. schedule: None if it is always dense."""

    parameters: Sequence[Named]
    schedule: RatioSchedule | None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return sum(parameter.numel() for _, parameter, _ in self.parameters)

    @property
    def density(self) -> float | None:
        """Fraction of the elements that is sent after the warm-up; None if it is always dense."""
        return None if self.schedule is None else self.schedule.ratio

    def is_sparse(self, composition: Composition, workers: int) -> bool:
        """Whether the reducer sends it sparse: if the sparse messages are the shorter ones."""
        if self.density is None:
            return False
        k = keep(self.numel, self.density)
        exchange, codec = composition.exchange, composition.codec
        return k < self.numel and exchange.pays(self.numel, k, codec, workers)

    def bucket(self, composition: Composition, density: float) -> Bucket:
        """A bucket of one worker, with the buffers of the composition's memory."""
        bucket = Bucket(self.parameters, self.schedule, composition.memory.buffers)
        bucket.ratio = density
        return bucket


def blueprints(composition: Composition, trained: Sequence[Named]) -> list[Blueprint]:
    """The buckets of a model, in the order in which they are sent."""
    buckets = composition.planner.plan(
        trained, composition.rules, composition.schedule, composition.memory.buffers
    )
    return [Blueprint([member[:3] for member in b.members], b.schedule) for b in buckets]


def sparse_line(make: Make, blueprint: Blueprint) -> Line:
    """Measure the processor seconds of the sparse path, by messages handled.

    Raises:
        UnfitError: the free memory suffices for no number of workers.
    """
    composition, density = make(), blueprint.density
    assert density is not None
    few = sizes(composition.exchange, DOUBLINGS)
    few = [size for size in few if blueprint.is_sparse(composition, size)] or few[:1]
    few = affordable(few, blueprint.numel)
    return fit([point(make, blueprint, size, density) for size in few])


def dense_line(make: Make, blueprint: Blueprint) -> Line:
    """Measure the processor seconds of the dense path, which any number of workers have alike.

    Raises:
        UnfitError: the free memory does not suffice.
    """
    (fewest,) = affordable(sizes(make().exchange, 1), blueprint.numel)
    _, seconds = point(make, blueprint, fewest, density=1.0)
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


def point(make: Make, blueprint: Blueprint, workers: int, density: float) -> tuple[int, float]:
    """Measure a bucket's path with a number of workers.

    Returns:
        How many messages the busiest workers handle per step, and their mean processor seconds.
    """
    with one_thread():
        ranks = simulate(workers, lambda engine: walk(make, blueprint, density, engine))
    most = max(handled for handled, _ in ranks)
    return most, statistics.mean(seconds for handled, seconds in ranks if handled == most)


def walk(
    make: Make, blueprint: Blueprint, density: float, engine: SimulatedEngine
) -> tuple[int, float]:
    """One worker's messages handled and processor seconds per step, medians over some steps.

    The time inside the engine is not counted: it is that of the simulation.
    """
    composition, metered = make(), Metered(engine)
    codec = Counting(composition.codec)
    bucket = blueprint.bucket(composition, density)
    reducer = Reducer([bucket], replace(composition, codec=codec), metered)
    noise = heavy_tailed(bucket.numel, engine.rank).to(bucket.dtype)
    handled, seconds = [], []
    for step in range(WARMUP + STEPS):
        gradient = noise.roll(SHIFT * step)
        before, start = codec.handled, time.thread_time() - metered.processor
        hand_over(bucket, gradient)
        reducer.ready(0)
        reducer.synchronize()
        handled.append(codec.handled - before)
        seconds.append(time.thread_time() - metered.processor - start)
    return statistics.median_high(handled[WARMUP:]), statistics.median(seconds[WARMUP:])


def hand_over(bucket: Bucket, gradient: Tensor) -> None:
    """Give a bucket its gradient at the cost of the optimizer's hooks.

    Those copy the gradients of a dense bucket of several parameters, and no others.
    """
    if bucket.schedule is None and len(bucket.members) > 1:
        bucket.gradient.copy_(gradient)
    else:
        bucket.adopt(gradient)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread, so that the thread's time is all processor time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
