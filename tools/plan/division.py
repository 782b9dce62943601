"""The buckets of a model by several planners, with the predicted step of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import Parameter

from dgc import Composition
from dgc.costmodel import Calibration, Line
from dgc.planner import Merged, Plan, extremes
from dgc.planner.calibration import sizes
from dgc.planner.forecast import Costs, Forecast, Timing
from dgc.timeline import Passage, Span, spans
from tools.plan.compositions import Make
from tools.plan.measure import Bench
from tools.plan.path import Blueprint, dense_line, sparse_line
from tools.plan.predict import Counts, Setting, ring_counts, route, scaled

COPIES = 5  # of which the fastest counts


class Division(NamedTuple):
    """The buckets of one planner. All times in seconds after the start of the step.

    forward, backward: when each pass would end without any bucket.
    end: when the step ends, with the optimizer's update.
    """

    name: str
    plan: Plan
    passages: Sequence[Passage]
    forward: float
    backward: float
    end: float

    @property
    def spans(self) -> list[Span]:
        """When each bucket is compressed and sent."""
        return spans(self.passages, self.backward)

    @property
    def core(self) -> float:
        """When the core has finished the backward pass and its work on all buckets."""
        return self.backward + sum(each.processor + each.moving for each in self.passages)


def divisions(bench: Bench, make: Make, host: Calibration, setting: Setting) -> list[Division]:
    """One composition's buckets per tensor, of the whole model, and merged. Raises UnfitError."""
    composition = make()
    trained = bench.subject.trained(composition)
    rules, schedule = composition.rules, composition.schedule
    step = scaled(bench.step, setting.sharing)
    numel = sum(parameter.numel() for _, parameter, _ in trained)
    timing = Timing(step.arrivals, step.backward, costs(bench, make, numel, host, setting))
    forecast = Forecast(timing, composition.exchange, composition.codec)
    update = setting.sharing * bench.update(composition)
    planners = {**extremes(trained, rules, schedule), 'merged': Merged(forecast)}
    found = []
    for name, planner in planners.items():
        buckets = planner.plan(trained, rules, schedule, ())
        passages = forecast.passages(buckets)
        plan = Plan.of(buckets, rules, schedule)
        seconds = forecast.seconds(buckets) + update
        found.append(Division(name, plan, passages, step.forward, step.backward, seconds))
    return found


def costs(bench: Bench, make: Make, numel: int, host: Calibration, setting: Setting) -> Costs:
    """The costs of buckets of up to ``numel`` elements in a setting.

    Processor times are measured here, at every second of the sizes that the library calibrates
    with, the largest included; network times are computed.
    """
    composition, workers, busy = make(), setting.workers, setting.sharing
    some = sizes(numel)[::-2][::-1]

    def compress(lines: Sequence[Line], counts: Counts) -> Line:
        points = [(n, busy * line.at(counts.handled)) for n, line in zip(some, lines, strict=True)]
        return Line.through(points)[0]

    ring = ring_counts(workers)
    lines = [dense_line(make, one(n, composition)) for n in some]
    dense = route(compress(lines, ring), ring, host, setting)
    sparse = None
    if composition.schedule.ratio < 1:
        counts = bench.growth(make).at(workers)
        lines = [sparse_line(make, one(n, composition)) for n in some]
        sparse = route(compress(lines, counts), counts, host, setting)
    return Costs(workers, sparse, dense, copying(numel, busy))


def one(numel: int, composition: Composition) -> Blueprint:
    """A bucket of one parameter of ``numel`` elements."""
    parameter = Parameter(torch.empty(numel, 1), requires_grad=False)
    return Blueprint([('one', parameter, {})], composition.schedule)


def copying(numel: int, busy: float) -> Line:
    """Seconds of a copy, by elements. busy: workers that share a core."""
    source, target = torch.zeros(numel), torch.zeros(numel)
    times = []
    for _ in range(COPIES):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return Line(0.0, busy * min(times) / numel)
