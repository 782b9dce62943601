"""Measured costs of a composition, where it will run: real buckets on the real engine.

The composition is copied first, so that its parts' state stays as it is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
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

LEAST, TIMES = 1 << 10, 4  # elements: 1,024, then 4 times as many, and so on
WARMUP, REPEATS = 2, 5
MOMENTUM = 0.9  # of the optimizer's group, for memories that apply it
LONG = 0.3  # seconds: no bucket larger than one that takes longer is measured,
FEWEST = 3  # once there are so many points: two would not show the error of a line


class Point(NamedTuple):
    """Measured seconds of one bucket of ``numel`` elements; sent: bytes that a rank sends."""

    numel: int
    sent: float
    compress: float
    exchange: float
    copy: float


def calibrate_path(
    composition: Composition, engine: Engine, numel: int, device: torch.device
) -> Costs:
    """Measure buckets of up to ``numel`` elements, and fit lines to the medians.

    A collective: the result is the same on all ranks. It takes seconds: about ten sizes, and a few
    steps of each.

    Args:
        composition: Whose parts process the buckets.
        engine: On which messages are exchanged.
        numel: Elements of the largest bucket.
        device: Of the gradients.
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
    """Measure buckets from small to large, without those that would be sent uncompressed."""
    found: list[Point] = []
    for size in sizes(numel):
        schedule = None if density is None else DensitySchedule(density)
        parameter = ParameterSpec('calibration', matrix_shape(size), device=device)
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
    """Return ``LEAST`` elements, ``TIMES`` as many, and so on, and ``numel``."""
    found = [min(LEAST, numel)]
    while found[-1] * TIMES < numel:
        found.append(found[-1] * TIMES)
    return [*found, numel] if numel > found[-1] else found


def matrix_shape(numel: int) -> tuple[int, int]:
    """Return the squarest shape of ``numel`` elements with a power of two of columns."""
    columns = 1
    while numel % (2 * columns) == 0 and 4 * columns * columns <= numel:
        columns *= 2
    return numel // columns, columns


def point(composition: Composition, engine: Engine, spec: BucketSpec, sent: float) -> Point:
    """Measure one size: medians over some steps of all ranks together."""
    device = spec.device
    reducer = reducer_of(deepcopy(composition), spec, engine, spec.density)
    noise = heavy_tailed(spec.numel, engine.rank).to(device)
    steps = [step(reducer, noise) for _ in range(WARMUP + REPEATS)][WARMUP:]
    ours = torch.tensor([statistics.median(column) for column in zip(*steps, strict=True)])
    gathered = engine.all_gather(ours.double().to(device)).cpu()  # [P, 3]
    total, compress, copy = gathered[:, 0].max(), *gathered[:, 1:].mean(0)
    # A rank that has compressed first waits for the others inside the engine.
    exchange = max(float(total - compress), 0.0)
    return Point(spec.numel, sent, float(compress), exchange, float(copy))


def reducer_of(
    composition: Composition, spec: BucketSpec, engine: Engine, density: float | None
) -> Reducer:
    """Return a reducer of one bucket, whose parameters are of its own.

    Args:
        composition: Whose parts process the bucket.
        spec: What it holds.
        engine: Carries messages.
        density: At which it is sent; None for uncompressed.
    """
    members = []
    for member in spec.members:
        empty = torch.empty(member.shape, dtype=spec.dtype, device=spec.device)
        members.append((Parameter(empty, requires_grad=False), {'momentum': MOMENTUM}))
    bucket = Bucket(spec, members, composition.state_for(spec), engine.rank, engine.size)
    bucket.density = density
    return Reducer([bucket], composition, engine)


def step(reducer: Reducer, noise: Tensor) -> tuple[float, float, float]:
    """Return the seconds that a bucket takes, those of them outside the engine, and of a copy."""
    (bucket,), engine = reducer.buckets, reducer.engine
    start = moment(noise.device)
    bucket.gradient.copy_(noise)
    copied = moment(noise.device) - start
    engine.barrier()
    before, clock = reducer.progress.compress, engine.traffic.clock_seconds
    reducer.ready(0)
    reducer.synchronize()
    handed_over = time.perf_counter()
    queued = moment(noise.device) - handed_over  # on a GPU, where work is still queued
    compress = reducer.progress.compress - before
    return compress + engine.traffic.clock_seconds - clock + queued, compress, copied


def through(found: Sequence[Point]) -> Route:
    """Fit lines to measured points."""
    compress, one = Line.through([(each.numel, each.compress) for each in found])
    exchange, other = Line.through([(each.sent, each.exchange) for each in found])
    return Route(compress, exchange, max(one, other))


def heavy_tailed(numel: int, seed: int) -> Tensor:
    """Return float32 ``[n]`` with heavy tails, as gradients have: cubes of normal numbers."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=draw).pow_(3).mul_(1e-3)
