"""The buckets of a model by several planners, with the predicted step of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from dgc.bucket_spec import BucketSpec
from dgc.calibration import near_square, sizes
from dgc.costmodel import Calibration, Line
from dgc.planner import Merged, Plan, extremes
from dgc.planner.forecast import Costs, Forecast, Timing
from dgc.timeline import BucketTimes, Span, spans
from tools.plan.compositions import Make
from tools.plan.measure import Bench
from tools.plan.path import dense_line, sparse_line
from tools.plan.predict import Counts, Setting, ring_counts, route, scaled

COPIES = 5  # of which the fastest counts


class Division(NamedTuple):
    """The buckets of one planner. All times in seconds after the start of the step.

    forward, backward: when each pass would end without any bucket.
    pipelined: whether a bucket is compressed while the one before it is sent.
    end: when the step ends, with the optimizer's update.
    """

    name: str
    plan: Plan
    bucket_times: Sequence[BucketTimes]
    forward: float
    backward: float
    end: float
    pipelined: bool = False

    @property
    def spans(self) -> list[Span]:
        """When each bucket is compressed and sent."""
        return spans(self.bucket_times, self.backward, self.pipelined)

    @property
    def core(self) -> float:
        """When the core has finished the backward pass and its work on all buckets."""
        work = sum(each.processor + each.moving for each in self.bucket_times)
        return float(self.backward + work)


def divisions(bench: Bench, make: Make, host: Calibration, setting: Setting) -> list[Division]:
    """One composition's buckets per tensor, of the whole model, and merged. Raises UnfitError."""
    composition = make()
    request = bench.subject.request(composition)
    step = scaled(bench.step, setting.sharing)
    numel = sum(parameter.numel for parameter in request.parameters)
    own = costs(bench, make, numel, host, setting)
    timing = Timing(step.arrivals, step.backward, own, setting.pipelined)
    volume = composition.volume
    parts = volume.exchange, volume.codec, volume.compressor, volume.always_sparse
    forecast = Forecast(timing, *parts)
    request = replace(request, world_size=setting.workers, forecast=forecast)
    update = setting.sharing * bench.update(composition)
    found = []
    for name, planner in {**extremes(request), 'merged': Merged()}.items():
        buckets = planner.plan(request)
        bucket_times = [forecast.bucket_times(bucket) for bucket in buckets]
        seconds = forecast.seconds(buckets) + update
        passes = step.forward, step.backward, seconds
        found.append(Division(name, Plan(buckets), bucket_times, *passes, setting.pipelined))
    return found


def costs(bench: Bench, make: Make, numel: int, host: Calibration, setting: Setting) -> Costs:
    """The costs of buckets of up to ``numel`` elements in a setting.

    Processor times are measured here, at every second of the sizes that the library calibrates
    with, the largest included; network times are computed.
    """
    schedule, workers, busy = make().schedule, setting.workers, setting.sharing
    some = sizes(numel)[::-2][::-1]
    specs = [BucketSpec.of_shape(*near_square(n), schedule=schedule) for n in some]

    def compress(lines: Sequence[Line], counts: Counts) -> Line:
        points = [(n, busy * line.at(counts.handled)) for n, line in zip(some, lines, strict=True)]
        return Line.through(points)[0]

    ring = ring_counts(workers)
    lines = [dense_line(make, spec) for spec in specs]
    dense = route(compress(lines, ring), ring, host, setting)
    sparse = None
    if schedule.density is not None:
        counts = bench.growth(make).at(workers)
        lines = [sparse_line(make, spec) for spec in specs]
        sparse = route(compress(lines, counts), counts, host, setting)
    return Costs(workers, sparse, dense, copying(numel, busy))


def copying(numel: int, busy: float) -> Line:
    """Seconds of a copy, by elements. busy: workers that share a core."""
    source, target = torch.zeros(numel), torch.zeros(numel)
    times = []
    for _ in range(COPIES):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return Line(0.0, busy * min(times) / numel)
