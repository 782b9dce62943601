"""Measures what a composition costs, by processing buckets of several sizes on the run's engine.

A copy of the composition is measured, without its control, so that the state of its parts does not
change.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.buckets import Bucket
from dgc.composition import Composition
from dgc.costmodel import Line
from dgc.engines.base import Engine
from dgc.planner.forecast import Costs, Route
from dgc.profile import moment
from dgc.reducer import Reducer
from dgc.schedule import DensitySchedule

LEAST, TIMES = 1 << 10, 4  # sizes in elements: 1,024, 4,096, 16,384, …
WARMUP, REPEATS = 2, 5
MOMENTUM = 0.9  # of the optimizer's group, for memories that apply it
# Larger buckets are not measured after one that takes LONG seconds, unless there are fewer than
# FEWEST points: a line through two has no error.
LONG = 0.3
FEWEST = 3


class Point(NamedTuple):
    """Measured times of one bucket, in seconds.

    Attributes:
        numel: Its elements.
        sent: Bytes that a rank sends.
        compress: Time outside the engine, as the mean over the ranks.
        exchange: The rest of the time of the slowest rank.
        copy: Time of copying the gradient, as the mean over the ranks.
    """

    numel: int
    sent: float
    compress: float
    exchange: float
    copy: float


def calibrate_path(
    composition: Composition, engine: Engine, numel: int, device: torch.device
) -> Costs:
    """Measure buckets of up to ``numel`` elements, and fit lines to the medians.

    A collective: the result is the same on all ranks. It takes some seconds, for a few steps of
    about ten sizes.

    Args:
        composition: The parts that process the buckets.
        engine: Carries the messages.
        numel: Elements of the largest bucket.
        device: Of the gradients.

    Returns:
        The costs at the composition's density after the warm-up, and uncompressed.
    """
    density = composition.schedule.density
    dense = points(composition, engine, numel, None, device)
    sparse = [] if density is None else points(composition, engine, numel, density, device)
    return Costs(
        engine.size,
        through(sparse) if sparse else None,
        through(dense),
        Line.through([(each.numel, each.copy) for each in dense])[0],
    )


def points(
    composition: Composition,
    engine: Engine,
    numel: int,
    density: float | None,
    device: torch.device,
) -> list[Point]:
    """Measure buckets from small to large.

    Args:
        composition: The parts that process the buckets.
        engine: Carries the messages.
        numel: Elements of the largest bucket.
        density: At which buckets are sent; None for uncompressed.
        device: Of the gradients.

    Returns:
        One point per size, without the sizes whose compressed message would not be smaller.
    """
    found: list[Point] = []
    for size in sizes(numel):
        schedule = None if density is None else DensitySchedule(density)
        parameter = ParameterSpec('calibration', near_square(size), device=device)
        spec = BucketSpec.of([parameter], schedule)
        volume = composition.volume
        if density is not None and not volume.compresses(spec, density, engine.size):
            continue
        sent = volume.bytes_sent(spec, density, engine.size)
        found.append(point(composition, engine, spec, sent))
        if len(found) >= FEWEST and found[-1].compress + found[-1].exchange > LONG:
            break
    return found


def sizes(numel: int) -> list[int]:
    """Return the numbers of elements to measure: a geometric series up to ``numel``."""
    found = [min(LEAST, numel)]
    while found[-1] * TIMES < numel:
        found.append(found[-1] * TIMES)
    return [*found, numel] if numel > found[-1] else found


def near_square(numel: int) -> tuple[int, int]:
    """Return the most nearly square shape of ``numel`` elements whose columns are a power of 2."""
    columns = 1
    while numel % (2 * columns) == 0 and 4 * columns * columns <= numel:
        columns *= 2
    return numel // columns, columns


def point(composition: Composition, engine: Engine, spec: BucketSpec, sent: float) -> Point:
    """Measure a bucket: medians over REPEATS steps, combined over the ranks as ``Point`` states."""
    device = spec.device
    # A control would change the density, and counts decisions by the steps of training.
    measured = replace(deepcopy(composition), control=None)
    reducer = reducer_of(measured, spec, engine, spec.density)
    noise = heavy_tailed(spec.numel, engine.rank).to(device)
    steps = [step(reducer, noise) for _ in range(WARMUP + REPEATS)][WARMUP:]
    medians = [statistics.median(column) for column in zip(*steps, strict=True)]
    ours = torch.tensor(medians, dtype=torch.float64, device=device)
    gathered = engine.all_gather(ours).cpu()  # [P, 3]
    total, compress, copy = gathered[:, 0].max(), *gathered[:, 1:].mean(0)
    # A rank that has compressed first waits for the others inside the engine.
    exchange = max(float(total - compress), 0.0)
    return Point(spec.numel, sent, float(compress), exchange, float(copy))


def reducer_of(
    composition: Composition, spec: BucketSpec, engine: Engine, density: float | None
) -> Reducer:
    """Return a reducer of one bucket, with parameters allocated for it.

    Args:
        composition: The parts that process the bucket.
        spec: Shape of the bucket.
        engine: Carries the messages.
        density: At which the bucket is sent; None for uncompressed.
    """
    members = []
    for member in spec.members:
        empty = torch.empty(member.shape, dtype=spec.dtype, device=spec.device)
        members.append((Parameter(empty, requires_grad=False), {'momentum': MOMENTUM}))
    bucket = Bucket(spec, members, composition.state_for(spec), engine.rank, engine.size)
    bucket.density = density
    return Reducer([bucket], composition, engine)


def step(reducer: Reducer, noise: Tensor) -> tuple[float, float, float]:
    """Process a bucket once; return its seconds in all, those outside the engine, and of a copy."""
    (bucket,), engine = reducer.buckets, reducer.engine
    start = moment(noise.device)
    bucket.gradient.copy_(noise)
    copied = moment(noise.device) - start
    engine.barrier()
    before, clock = reducer.progress.compress, engine.traffic.clock_seconds
    reducer.ready(0)
    reducer.synchronize()
    handed_over = time.perf_counter()
    queued = moment(noise.device) - handed_over  # work that a GPU has not finished yet
    compress = reducer.progress.compress - before
    return compress + engine.traffic.clock_seconds - clock + queued, compress, copied


def through(found: Sequence[Point]) -> Route:
    """Fit the lines of a route to measured points."""
    compress, one = Line.through([(each.numel, each.compress) for each in found])
    exchange, other = Line.through([(each.sent, each.exchange) for each in found])
    return Route(compress, exchange, max(one, other))


def heavy_tailed(numel: int, seed: int) -> Tensor:
    """Return cubes of normal numbers, float32 ``[numel]``: heavy-tailed, as gradients are."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=draw, dtype=torch.float32).pow_(3).mul_(1e-3)
