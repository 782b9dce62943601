"""A stack's model divided into buckets in several ways, with what each is predicted to take."""

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
from dgc.planner.forecast import Costs, Forecast, Route, Timing
from dgc.timeline import Passage, Span, spans
from tools.plan.compositions import Make
from tools.plan.measure import Bench
from tools.plan.path import Blueprint, dense_line, sparse_line
from tools.plan.predict import Counts, Setting, exchange_line, moving_line, of_a_ring

COPIES = 5  # of which the least counts


class Division(NamedTuple):
    """One way to divide, in seconds after the step's begin.

    forward, backward: when each pass would end if there were no buckets.
    """

    name: str
    plan: Plan
    passages: Sequence[Passage]
    forward: float
    backward: float
    end: float

    @property
    def spans(self) -> list[Span]:
        """Of each bucket."""
        return spans(self.passages, self.backward)

    @property
    def core(self) -> float:
        """When the core has made the backward pass, and whatever the buckets cost it."""
        return self.backward + sum(each.processor + each.moving for each in self.passages)


def divisions(bench: Bench, make: Make, host: Calibration, setting: Setting) -> list[Division]:
    """Per tensor, the whole model, and merged, of one composition. Raises UnfitError."""
    composition = make()
    trained = bench.subject.trained(composition)
    rules, schedule = composition.rules, composition.schedule
    step = bench.step.scaled(setting.sharing)
    numel = sum(parameter.numel() for _, parameter, _ in trained)
    timing = Timing(step.arrivals, step.backward, costs(bench, make, numel, host, setting))
    forecast = Forecast(timing, composition.exchange, composition.codec)
    ways = {**extremes(trained, rules, schedule), 'merged': Merged(forecast)}
    found = []
    for name, planner in ways.items():
        buckets = planner.plan(trained, rules, schedule, ())
        passages = forecast.passages(buckets)
        plan = Plan.of(buckets, rules, schedule)
        forward = setting.sharing * bench.forward
        seconds = forecast.seconds(buckets) + setting.sharing * bench.update(composition)
        found.append(Division(name, plan, passages, forward, step.backward, seconds))
    return found


def costs(bench: Bench, make: Make, numel: int, host: Calibration, setting: Setting) -> Costs:
    """What buckets of any size take in a setting: their processor's part measured here."""
    composition, workers, busy = make(), setting.workers, setting.sharing
    some = sizes(numel)[::-2][::-1]  # every second one, the largest among them

    def compress(lines: Sequence[Line], handled: float) -> Line:
        points = [(n, busy * line.at(handled)) for n, line in zip(some, lines, strict=True)]
        return Line.through(points)[0]

    def route(lines: Sequence[Line], counts: Counts) -> Route:
        exchange, moving = (line(counts, host, setting) for line in (exchange_line, moving_line))
        return Route(compress(lines, counts.handled), exchange, moving=moving)

    dense = route([dense_line(make, one(n, composition)) for n in some], of_a_ring(workers))
    sparse = None
    if composition.schedule.ratio < 1:
        counts = bench.growth(make).at(workers)
        lines = [sparse_line(make, one(n, composition)) for n in some]
        sparse = route(lines, counts)
    return Costs(workers, sparse, dense, copying(numel, busy))


def one(numel: int, composition: Composition) -> Blueprint:
    """A bucket of one parameter."""
    parameter = Parameter(torch.empty(numel, 1), requires_grad=False)
    return Blueprint([('one', parameter, {})], composition.schedule)


def copying(numel: int, busy: float) -> Line:
    """Seconds by elements."""
    source, target = torch.zeros(numel), torch.zeros(numel)
    times = []
    for _ in range(COPIES):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return Line(0.0, busy * min(times) / numel)
