"""Processor time of a bucket's path, measured on simulated workers, which run one at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from dgc import simulate
from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.calibration import heavy_tailed, reducer_of
from dgc.costmodel import Line
from dgc.engines import SimulatedEngine
from tools.harness.machine import free_memory
from tools.plan.compositions import Make, UnfitError, sizes
from tools.plan.meter import Counting, Metered

DOUBLINGS = 3  # 2, 4 and 8 workers
WARMUP, STEPS = 2, 5
BYTES = 20  # per element and worker: the gradient, two buffers, and two to draw gradients from
SHARE = 0.8  # fraction of the free memory that may be used
SHIFT = 7919  # elements by which the gradient is rotated from step to step


def sparse_line(make: Make, spec: BucketSpec) -> Line:
    """Measure the processor seconds of the sparse path, by messages handled.

    Raises:
        UnfitError: the free memory suffices for no number of workers.
    """
    composition = make()
    served, volume = sizes(composition.exchange, DOUBLINGS), composition.volume
    few = [size for size in served if volume.compresses(spec, spec.density, size)]
    few = affordable(few or served[:1], spec.numel)
    line, _ = Line.through([point(make, spec, size, spec.density) for size in few])
    return line


def dense_line(make: Make, spec: BucketSpec) -> Line:
    """Measure the processor seconds of the dense path, the same for any number of workers.

    Raises:
        UnfitError: the free memory does not suffice.
    """
    (fewest,) = affordable(sizes(make().exchange, 1), spec.numel)
    _, seconds = point(make, spec, fewest, density=None)
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


def point(make: Make, spec: BucketSpec, workers: int, density: float | None) -> tuple[int, float]:
    """Measure a bucket's path with a number of workers. density: None for uncompressed.

    Returns:
        How many messages the busiest workers handle per step, and their mean processor seconds.
    """
    with one_thread():
        ranks = simulate(workers, lambda engine: walk(make, spec, density, engine))
    most = max(handled for handled, _ in ranks)
    return most, statistics.mean(seconds for handled, seconds in ranks if handled == most)


def walk(
    make: Make, spec: BucketSpec, density: float | None, engine: SimulatedEngine
) -> tuple[int, float]:
    """One worker's messages handled and processor seconds per step, medians over some steps.

    The time inside the engine is not counted: it is that of the simulation.
    """
    composition, metered = make(), Metered(engine)
    codec = Counting(composition.codec)
    reducer = reducer_of(replace(composition, codec=codec), spec, metered, density)
    (bucket,) = reducer.buckets
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
    if bucket.spec.schedule is None and len(bucket.members) > 1:
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
