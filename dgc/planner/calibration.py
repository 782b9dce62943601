"""What a composition's path takes, measured where it will run: real buckets on the real engine.

The composition is copied first, so that what its parts remember is as it was.
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

from dgc.buckets import Bucket
from dgc.composition import Composition
from dgc.compressors.base import keep
from dgc.costmodel import Line
from dgc.engines.base import Engine
from dgc.exchanges.base import ring_bytes
from dgc.planner.base import Named
from dgc.planner.forecast import Costs, Route
from dgc.profile import moment
from dgc.reducer import Reducer
from dgc.schedule import RatioSchedule

LEAST, TIMES = 1 << 10, 4  # elements: 1,024, and so many times more, up to the model's
WARMUP, REPEATS = 2, 5
LONG = 0.3  # seconds: of a bucket that takes longer there is no larger one,
FEWEST = 3  # if there are so many: two would leave the error of a line unknown


class Point(NamedTuple):
    """One bucket. numel: its elements; sent: bytes that a worker sends; the rest in seconds."""

    numel: int
    sent: float
    compress: float
    exchange: float
    copy: float


def calibrate_path(
    composition: Composition, engine: Engine, numel: int, device: torch.device
) -> Costs:
    """What buckets of up to ``numel`` elements take: lines through medians; the same on all ranks.

    A collective. It takes seconds: of some ten sizes, a few steps each.
    """
    ratio = composition.schedule.ratio
    dense = points(composition, engine, numel, 1.0, device)
    sparse = points(composition, engine, numel, ratio, device) if ratio < 1 else []
    return Costs(
        engine.size,
        through(sparse) if sparse else None,
        through(dense),
        Line.through([(each.numel, each.copy) for each in dense])[0],
    )


def points(
    composition: Composition, engine: Engine, numel: int, ratio: float, device: torch.device
) -> list[Point]:
    """From small buckets to large ones, of those that a reducer would send by this ratio."""
    exchange, codec = composition.exchange, composition.codec
    found: list[Point] = []
    for size in sizes(numel):
        k = keep(size, ratio)
        sent = ring_bytes(size, engine.size)
        if ratio < 1:
            if not exchange.pays(size, k, codec, max(engine.size, 2)):
                continue
            sent = exchange.bytes_sent(size, k, codec, engine.size)
        found.append(point(composition, engine, size, ratio, sent, device))
        if len(found) >= FEWEST and found[-1].compress + found[-1].exchange > LONG:
            break
    return found


def sizes(numel: int) -> list[int]:
    """``LEAST`` elements, ``TIMES`` as many, and so on, and ``numel``."""
    found = [min(LEAST, numel)]
    while found[-1] * TIMES < numel:
        found.append(found[-1] * TIMES)
    return [*found, numel] if numel > found[-1] else found


def point(
    composition: Composition,
    engine: Engine,
    numel: int,
    ratio: float,
    sent: float,
    device: torch.device,
) -> Point:
    """One size: medians over some steps of all workers together."""
    parameter = Parameter(torch.empty(numel, 1, device=device), requires_grad=False)
    members: list[Named] = [('calibration', parameter, {})]
    bucket = Bucket(members, RatioSchedule(ratio), composition.memory.buffers)
    bucket.ratio = ratio
    reducer = Reducer([bucket], deepcopy(composition), engine)
    noise = heavy_tailed(numel, engine.rank).to(device)
    steps = [step(reducer, noise) for _ in range(WARMUP + REPEATS)][WARMUP:]
    ours = torch.tensor([statistics.median(column) for column in zip(*steps, strict=True)])
    everybodys = engine.all_gather(ours.double().to(device)).cpu()  # [P, 3]
    total, compress, copy = everybodys[:, 0].max(), *everybodys[:, 1:].mean(0)
    # Who is through with compressing first waits for the others inside the engine.
    return Point(numel, sent, float(compress), max(float(total - compress), 0.0), float(copy))


def step(reducer: Reducer, noise: Tensor) -> tuple[float, float, float]:
    """Seconds that a bucket takes on its way, of them those outside the engine, and of a copy."""
    (bucket,), engine = reducer.buckets, reducer.engine
    start = moment(noise.device)
    bucket.gradient.copy_(noise)
    copied = moment(noise.device) - start
    engine.barrier()
    before, clock = reducer.progress.compress, engine.traffic.clock_seconds
    reducer.ready(0)
    reducer.synchronize()
    handed_over = time.perf_counter()
    queued = moment(noise.device) - handed_over  # on a GPU; a CPU has done what it was given
    compress = reducer.progress.compress - before
    return compress + engine.traffic.clock_seconds - clock + queued, compress, copied


def through(found: Sequence[Point]) -> Route:
    """The lines nearest to what was measured."""
    compress, one = Line.through([(each.numel, each.compress) for each in found])
    exchange, other = Line.through([(each.sent, each.exchange) for each in found])
    return Route(compress, exchange, max(one, other))


def heavy_tailed(numel: int, seed: int) -> Tensor:
    """float32 ``[n]`` of which a few are much larger than most, as of gradients: cubes of normal
    ones."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=draw).pow_(3).mul_(1e-3)
