"""Planners by measured times: merged layers (OMGS-SGD, MG-WFBP) and ratios by layer (LAGS-SGD)."""

from __future__ import annotations

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
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule
from dgc.timeline import Passage

if TYPE_CHECKING:
    from dgc.composition import Composition
    from dgc.engines.base import Engine
    from dgc.profile import Profile

AFFORDABLE = 256  # layers that are merged by dynamic programming: a second or two

TimedT = TypeVar('TimedT', bound='Timed')


class Lane(NamedTuple):
    """Parameters that may share a bucket, in the order in which their gradients appear.

    schedule: their ratio over time; None where they are always dense.
    """

    members: list[Named]
    schedule: RatioSchedule | None


@dataclass(frozen=True)
class Timed(Planner):
    """Plans by times that are measured when training begins, while all workers do the same.

    Rank 0's are everybody's, so all come to the same plan. The calibration takes some seconds.

    forecast: what is known of the run; None until ``informed``.
    """

    forecast: Forecast | None = None

    def informed(
        self: TimedT,
        composition: Composition,
        engine: Engine,
        parameters: Sequence[Named],
        profile: Callable[[], Profile] | None,
    ) -> TimedT:
        """Measures a step of the model, and the composition's path on the engine.

        Raises ValueError where there is no ``profile``.
        """
        if self.forecast is not None:
            return self
        if profile is None:
            raise ValueError(
                f'{type(self).__name__} plans by measured times: give a profile '
                '(see dgc.profile), or replay a saved plan'
            )
        from dgc.planner.calibration import calibrate_path  # which needs a composition

        numel = sum(parameter.numel() for _, parameter, _ in parameters)
        device = parameters[0][1].device
        found = profile()
        costs = calibrate_path(composition, engine, numel, device)
        ours = Timing(found.arrivals, found.backward, costs).to_json()
        timing = Timing.from_json(broadcast_json(engine, ours, device))
        return self.knowing(Forecast(timing, composition.exchange, composition.codec))

    def knowing(self: TimedT, forecast: Forecast) -> TimedT:
        """The same with a forecast of the run."""
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
        buckets = [
            Bucket(members, own, buffers)
            for lane in lanes(parameters, rules, schedule, self.forecast)
            for members, own in self.divide(lane, self.forecast)
        ]
        ready = self.forecast.ready
        return sorted(buckets, key=lambda b: max(ready(member.name) for member in b.members))

    @abstractmethod
    def divide(
        self, lane: Lane, forecast: Forecast
    ) -> Iterable[tuple[list[Named], RatioSchedule | None]]:
        """Buckets of a lane, each with its schedule, as if there were no other lane."""

    def foreseen(
        self, parameters: Sequence[Named], rules: LayerRules, schedule: RatioSchedule
    ) -> dict[str, float]:
        """See :meth:`Planner.foreseen`: of this plan, and of the two extremes."""
        assert self.forecast is not None
        planners = {
            type(self).__name__: self,
            'per tensor': PerTensor(dense_bytes=0),
            'whole model': Whole(),
        }
        return {
            name: self.forecast.seconds(planner.plan(parameters, rules, schedule, ()))
            for name, planner in planners.items()
        }


@dataclass(frozen=True)
class Merged(Timed):
    """Neighbours travel together where that ends the step sooner: the best grouping there is.

    The question and its costs are OMGS-SGD's (Shi et al., INFOCOM 2020), where nothing is
    compressed MG-WFBP's; the answer is exact, up to AFFORDABLE layers.
    """

    def divide(
        self, lane: Lane, forecast: Forecast
    ) -> Iterable[tuple[list[Named], RatioSchedule | None]]:
        """See :meth:`Timed.divide`."""
        first = 0
        for stop in self.stops(lane, forecast):
            yield lane.members[first:stop], lane.schedule
            first = stop

    def stops(self, lane: Lane, forecast: Forecast) -> list[int]:
        """Where each bucket of the lane stops."""
        if len(lane.members) > AFFORDABLE:
            return greedy(len(lane.members), together(lane, forecast))
        return exact(len(lane.members), together(lane, forecast), forecast.timing.backward)


@dataclass(frozen=True)
class MergedGreedily(Merged):
    """The published algorithm of OMGS-SGD and MG-WFBP, which may miss the best grouping."""

    def stops(self, lane: Lane, forecast: Forecast) -> list[int]:
        """See :meth:`Merged.stops`."""
        return greedy(len(lane.members), together(lane, forecast))


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

    def divide(
        self, lane: Lane, forecast: Forecast
    ) -> Iterable[tuple[list[Named], RatioSchedule | None]]:
        """See :meth:`Timed.divide`; what is always dense travels together."""
        if lane.schedule is None:
            yield lane.members, None
            return
        ready = [forecast.ready(name) for name, *_ in lane.members]
        for named, now, following in zip(lane.members, ready, [*ready[1:], ready[-1]], strict=True):
            ratio = self.ratio(named, lane.schedule, following - now, forecast)
            yield [named], lane.schedule.towards(ratio)

    def ratio(self, named: Named, schedule: RatioSchedule, gap: float, forecast: Forecast) -> float:
        """The largest that hides in ``gap`` seconds, by bisection of the elements sent."""
        name, parameter, _ = named
        numel = parameter.numel()

        def hides(k: int) -> bool:
            its = forecast.passage([name], numel, k / numel)
            return its.processor + its.network <= gap

        least = keep(numel, schedule.ratio)
        most = max(keep(numel, self.max_ratio), least)
        if least == most or not hides(least):
            return schedule.ratio
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if hides(middle) else (least, middle - 1)
        return max(least / numel, schedule.ratio)


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
        return forecast.passage(names[first:stop], before[stop] - before[first], ratio)

    return passage
