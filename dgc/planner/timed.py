"""Planners by measured times: merged layers (OMGS-SGD, MG-WFBP) and ratios by layer (LAGS-SGD)."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dgc.buckets import Bucket
from dgc.compressors.base import keep
from dgc.planner.base import Named, Planner, kind, own_schedule
from dgc.planner.broadcast import broadcast_json
from dgc.planner.by_size import PerTensor, Whole
from dgc.planner.forecast import Forecast, Timing
from dgc.planner.merging import exact, greedy
from dgc.planner.saved import PlanError, shared
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule
from dgc.timeline import Passage, end

if TYPE_CHECKING:
    from dgc.composition import Composition
    from dgc.engines.base import Engine
    from dgc.profile import Profile

AFFORDABLE = 256  # layers that are merged by dynamic programming: some seconds
FEW = 256  # ways to divide all lanes of which each is looked at

T = TypeVar('T')
TimedT = TypeVar('TimedT', bound='Timed')


class Lane(NamedTuple):
    """Parameters that share a bucket, or may, in the order in which their gradients appear.

    schedule: their ratio over time; None where they are always dense.
    """

    members: list[Named]
    schedule: RatioSchedule | None


@dataclass(frozen=True)
class Timed(Planner):
    """Plans by times that are measured when training begins, while all workers do the same.

    Rank 0's are everybody's, so all come to the same plan. The calibration takes some seconds.

    forecast: what is known of the run; None until ``informed``.
    times_of: plan.json of an earlier run, of the same model among as many workers: its times are
        taken, and nothing is measured.
    """

    forecast: Forecast | None = None
    times_of: str | None = None

    def informed(
        self: TimedT,
        composition: Composition,
        engine: Engine,
        parameters: Sequence[Named],
        profile: Callable[[], Profile] | None,
    ) -> TimedT:
        """Measures a step of the model, and the composition's path on the engine.

        Raises ValueError where there is no ``profile``, PlanError where ``times_of`` has no times
        of this model and so many workers.
        """
        if self.forecast is not None:
            return self
        if self.times_of is not None:
            timing = times(self.times_of, engine, parameters)
        elif profile is None:
            raise ValueError(
                f'{type(self).__name__} plans by measured times: give a profile '
                '(see dgc.profile), or replay a saved plan'
            )
        else:
            timing = measure(composition, engine, parameters, profile)
        forecast = Forecast(timing, composition.exchange, composition.codec)
        return replace(self, forecast=forecast)

    def plan(
        self,
        parameters: Sequence[Named],
        rules: LayerRules,
        schedule: RatioSchedule,
        buffers: Sequence[str],
    ) -> list[Bucket]:
        """See :meth:`Planner.plan`; a bucket comes before another that is complete later."""
        if self.forecast is None:
            raise ValueError(f'{type(self).__name__} plans by times that nobody has measured yet')
        found = lanes(parameters, rules, schedule, self.forecast)
        best = best_of([self.divide(lane, self.forecast) for lane in found], self._seconds)
        return [
            Bucket(lane.members, lane.schedule, buffers)
            for lane in self._in_order(itertools.chain(*best))
        ]

    def _in_order(self, lanes: Iterable[Lane]) -> list[Lane]:
        """By when they are complete."""
        assert self.forecast is not None
        ready = self.forecast.ready
        return sorted(lanes, key=lambda lane: max(ready(name) for name, *_ in lane.members))

    def _seconds(self, way: Sequence[list[Lane]]) -> float:
        """Of a step with these buckets, by lane."""
        assert self.forecast is not None
        order = self._in_order(itertools.chain(*way))
        passages = [together(lane, self.forecast)(0, len(lane.members)) for lane in order]
        return end(passages, self.forecast.timing.backward)

    @abstractmethod
    def divide(self, lane: Lane, forecast: Forecast) -> list[list[Lane]]:
        """A lane divided into buckets, in one way or a few, as if there were no other lane: of
        those ways the plan has what ends first with the others."""

    @property
    def timing(self) -> Timing | None:
        """See :attr:`Planner.timing`."""
        return None if self.forecast is None else self.forecast.timing

    def foreseen(
        self,
        buckets: Sequence[Bucket],
        parameters: Sequence[Named],
        rules: LayerRules,
        schedule: RatioSchedule,
    ) -> dict[str, float]:
        """See :meth:`Planner.foreseen`: of this plan, and of the two extremes."""
        assert self.forecast is not None
        found = {type(self).__name__: self.forecast.seconds(buckets)}
        for name, planner in extremes(parameters, rules, schedule).items():
            found[name] = self.forecast.seconds(planner.plan(parameters, rules, schedule, ()))
        return found


@dataclass(frozen=True)
class Merged(Timed):
    """Neighbours travel together where that ends the step sooner: the best grouping there is.

    The question and its costs are OMGS-SGD's (Shi et al., INFOCOM 2020), where nothing is
    compressed MG-WFBP's; the answer is exact, up to AFFORDABLE layers.
    """

    def divide(self, lane: Lane, forecast: Forecast) -> list[list[Lane]]:
        """See :meth:`Timed.divide`: merged, or whole, where another lane keeps the network busy."""
        stops = self.stops(lane, forecast)
        merged = [
            Lane(lane.members[first:stop], lane.schedule)
            for first, stop in zip([0, *stops], stops, strict=False)
        ]
        return [merged, [lane]] if len(merged) > 1 else [merged]

    def stops(self, lane: Lane, forecast: Forecast) -> list[int]:
        """Where each bucket of the lane stops."""
        if len(lane.members) > AFFORDABLE:
            return greedy(len(lane.members), together(lane, forecast), forecast.timing.backward)
        return exact(len(lane.members), together(lane, forecast), forecast.timing.backward)


@dataclass(frozen=True)
class MergedGreedily(Merged):
    """The published algorithm of OMGS-SGD and MG-WFBP, which may miss the best grouping."""

    def stops(self, lane: Lane, forecast: Forecast) -> list[int]:
        """See :meth:`Merged.stops`."""
        return greedy(len(lane.members), together(lane, forecast), forecast.timing.backward)


@dataclass(frozen=True)
class Adaptive(Timed):
    """LAGS-SGD (Shi et al., ECAI 2020): each layer by itself, with a ratio of its own.

    The largest whose compression and exchange are over before the next layer's gradient is there,

        c(ρ(l)·n(l)) + s(n(l)) <= b(l-1),

    so that no time is claimed twice; never less than the schedule's ratio.

    max_ratio: never more.
    """

    max_ratio: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.max_ratio <= 1:
            raise ValueError(f'max_ratio must be above 0 and at most 1, got {self.max_ratio}')

    def divide(self, lane: Lane, forecast: Forecast) -> list[list[Lane]]:
        """See :meth:`Timed.divide`; what is always dense travels together."""
        if lane.schedule is None:
            return [[lane]]
        ready = [forecast.ready(name) for name, *_ in lane.members]
        layers = []
        for named, now, following in zip(lane.members, ready, [*ready[1:], ready[-1]], strict=True):
            ratio = self.ratio(named, lane.schedule, following - now, forecast)
            layers.append(Lane([named], lane.schedule.towards(ratio)))
        return [layers]

    def ratio(self, named: Named, schedule: RatioSchedule, gap: float, forecast: Forecast) -> float:
        """The largest that hides in ``gap`` seconds, by bisection of the elements sent."""
        name, parameter, _ = named
        numel = parameter.numel()

        def hides(k: int) -> bool:
            """Whether so many elements do."""
            its = forecast.passage([name], numel, k / numel)
            return its.processor + its.network <= gap

        least = keep(numel, schedule.ratio)
        most = max(keep(numel, self.max_ratio), least)
        if least == most or not hides(least):
            return schedule.ratio
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if hides(middle) else (least, middle - 1)
        return max(min(least / numel, self.max_ratio), schedule.ratio)


def best_of(ways: Sequence[Sequence[T]], seconds: Callable[[Sequence[T]], float]) -> Sequence[T]:
    """One of the ways of each lane, so that all together take the least ``seconds``.

    Where there are more than FEW combinations, each lane is decided by itself, from the first ways
    of all or from the last: whichever is better.
    """
    if math.prod(map(len, ways)) <= FEW:
        return min(itertools.product(*ways), key=seconds)
    starts = [[options[place] for options in ways] for place in (0, -1)]
    best = min(starts, key=seconds)
    for place, options in enumerate(ways):
        best = min(([*best[:place], way, *best[place + 1 :]] for way in options), key=seconds)
    return best


def measure(
    composition: Composition,
    engine: Engine,
    parameters: Sequence[Named],
    profile: Callable[[], Profile],
) -> Timing:
    """A step of the model, and the composition's path on the engine: rank 0's. A collective."""
    from dgc.planner.calibration import calibrate_path  # which needs a composition

    numel = sum(parameter.numel() for _, parameter, _ in parameters)
    device = parameters[0][1].device
    found = profile()
    costs = calibrate_path(composition, engine, numel, device)
    ours = Timing(found.arrivals, found.backward, costs).to_json()
    return Timing.from_json(broadcast_json(engine, ours, device))


def times(file: str, engine: Engine, parameters: Sequence[Named]) -> Timing:
    """Those of an earlier run. Raises PlanError where they are not of these."""
    timing = shared(file, engine, parameters[0][1].device).timing
    if timing is None:
        raise PlanError(f'{file} has no times: its planner measured nothing')
    if timing.costs.workers != engine.size:
        raise PlanError(f'{file} has times of {timing.costs.workers} workers, here {engine.size}')
    names = {name for name, *_ in parameters}
    strangers = [name for name in timing.arrivals if name not in names]
    if strangers:
        raise PlanError(f'{file} is of another model: this one has no {strangers[0]}')
    return timing


def extremes(
    parameters: Sequence[Named], rules: LayerRules, schedule: RatioSchedule
) -> dict[str, Planner]:
    """What merging lies between. Where some are sparse, what is always dense travels together."""
    sparse = any(own_schedule(name, p, rules, schedule) for name, p, _ in parameters)
    apart = PerTensor() if sparse else PerTensor(dense_bytes=0)
    return {'per tensor': apart, 'whole model': Whole()}


def lanes(
    parameters: Sequence[Named], rules: LayerRules, schedule: RatioSchedule, forecast: Forecast
) -> list[Lane]:
    """All parameters that have elements, by what they may share a bucket with."""
    found: dict[object, Lane] = {}
    for named in reversed(parameters):
        name, parameter, _ = named
        if parameter.numel():
            own = own_schedule(name, parameter, rules, schedule)
            found.setdefault(kind(named, own), Lane([], own)).members.append(named)
    for lane in found.values():
        lane.members.sort(key=lambda named: forecast.ready(named[0]))
    return list(found.values())


def together(lane: Lane, forecast: Forecast) -> Callable[[int, int], Passage]:
    """What :mod:`dgc.planner.merging` asks of a lane."""
    names = [name for name, *_ in lane.members]
    before = [0]
    for _, parameter, _ in lane.members:
        before.append(before[-1] + parameter.numel())
    ratio = None if lane.schedule is None else lane.schedule.ratio

    def passage(first: int, stop: int) -> Passage:
        """Of the members from the first to before the second number."""
        return forecast.passage(names[first:stop], before[stop] - before[first], ratio)

    return passage
