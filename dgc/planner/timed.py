"""Planners by measured times: merged layers (OMGS-SGD, MG-WFBP) and densities by layer
(LAGS-SGD)."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dgc.bucket_spec import BucketSpec, ParameterSpec, Stretch
from dgc.compressors.base import keep
from dgc.planner.base import Planner, PlanRequest, sharing_key
from dgc.planner.by_size import PerTensor, Whole
from dgc.planner.forecast import Forecast, Timing
from dgc.planner.merging import GroupCost, exact, greedy
from dgc.planner.plan import PlanError

AFFORDABLE = 256  # layers that are merged by dynamic programming: within a second or two
FEW = 256  # combinations of divisions that are all compared

T = TypeVar('T')


@dataclass(frozen=True)
class Timed(Planner):
    """Plans by times that are measured on all ranks when training begins.

    All ranks use rank 0's times, so that they compute the same plan. The measurement takes some
    seconds (``dgc.calibration``).

    Args:
        forecast: Times to plan by; None to have them measured.
        times_of: plan.json of an earlier run of the same model on as many ranks: its times are
            used, and nothing is measured.
    """

    forecast: Forecast | None = None
    times_of: str | None = None

    @property
    def saved_plan(self) -> str | None:  # type: ignore[override]
        """``times_of``."""
        return self.times_of

    @property
    def needs_timing(self) -> bool:
        """Whether no forecast was given."""
        return self.forecast is None

    def saved_timing(self, request: PlanRequest) -> Timing | None:
        """Return the times of ``times_of``.

        Raises:
            PlanError: Where they are not of this model and this number of ranks.
        """
        if request.saved is None:
            return None
        timing, file = request.saved.timing, self.times_of
        if timing is None:
            raise PlanError(f'{file} has no times: its planner measured nothing')
        if timing.costs.workers != request.world_size:
            raise PlanError(
                f'{file} has times of {timing.costs.workers} ranks, here are {request.world_size}'
            )
        names = {parameter.name for parameter in request.parameters}
        others = [name for name in timing.arrivals if name not in names]
        if others:
            raise PlanError(f'{file} is of another model: this one has no {others[0]}')
        return timing

    def plan(self, request: PlanRequest) -> list[BucketSpec]:
        """See ``Planner.plan``; a bucket comes before another that is complete later."""
        forecast = self._forecast(request)
        divisions = [self.divide(lane, forecast) for lane in lanes(request, forecast)]

        def seconds(division: Sequence[list[BucketSpec]]) -> float:
            return forecast.seconds(in_order(itertools.chain(*division), forecast))

        return in_order(itertools.chain(*best_of(divisions, seconds)), forecast)

    def _forecast(self, request: PlanRequest) -> Forecast:
        forecast = self.forecast or request.forecast
        if forecast is None:
            raise ValueError(
                f'{type(self).__name__} plans by measured times: give a profile (see dgc.profile), '
                'or replay a saved plan'
            )
        return forecast

    @abstractmethod
    def divide(self, lane: BucketSpec, forecast: Forecast) -> list[list[BucketSpec]]:
        """Return one or a few divisions of a lane into buckets.

        Args:
            lane: All parameters that may share a bucket, in the order in which their gradients
                appear.
            forecast: The times to go by, as if there were no other lane. The plan takes the
                division that ends first together with the other lanes.
        """

    def predicted(self, request: PlanRequest, buckets: Sequence[BucketSpec]) -> dict[str, float]:
        """See ``Planner.predicted``: of this plan, and of the two extremes."""
        forecast = self._forecast(request)
        found = {type(self).__name__: forecast.seconds(buckets)}
        for name, planner in extremes(request).items():
            found[name] = forecast.seconds(planner.plan(request))
        return found


@dataclass(frozen=True)
class Merged(Timed):
    """Neighbours share a bucket where that ends the step sooner: the best grouping there is.

    The costs are those of OMGS-SGD (Shi et al., INFOCOM 2020), or of MG-WFBP where nothing is
    compressed; the grouping is optimal for up to AFFORDABLE layers, by dynamic programming.
    """

    def divide(self, lane: BucketSpec, forecast: Forecast) -> list[list[BucketSpec]]:
        """See ``Timed.divide``: merged, or all in one, for where another lane keeps the network
        busy."""
        stops = self.stops(lane, forecast)
        merged = [lane.between(a, b) for a, b in zip([0, *stops], stops, strict=False)]
        return [merged, [lane]] if len(merged) > 1 else [merged]

    def stops(self, lane: BucketSpec, forecast: Forecast) -> list[int]:
        """Return the number of the member at which each bucket of the lane stops."""
        solve = greedy if len(lane.members) > AFFORDABLE else exact
        timing = forecast.timing
        cost = group_cost(lane, forecast)
        return solve(len(lane.members), cost, timing.backward, timing.pipelined)


@dataclass(frozen=True)
class MergedGreedily(Merged):
    """The published algorithm of OMGS-SGD and MG-WFBP, which may miss the best grouping."""

    def stops(self, lane: BucketSpec, forecast: Forecast) -> list[int]:
        """See ``Merged.stops``."""
        timing = forecast.timing
        cost = group_cost(lane, forecast)
        return greedy(len(lane.members), cost, timing.backward, timing.pipelined)


@dataclass(frozen=True)
class Adaptive(Timed):
    """LAGS-SGD (Shi et al., ECAI 2020): each layer by itself, with a density of its own.

    The largest density whose compression and exchange end before the next layer's gradient appears,

        c(ρ(l)·n(l)) + s(n(l)) <= b(l-1),

    so that no time is claimed twice; at least the schedule's density.

    Args:
        max_ratio: The largest density.

    Raises:
        ValueError: For a max_ratio outside (0, 1].
    """

    max_ratio: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.max_ratio <= 1:
            raise ValueError(f'max_ratio must be above 0 and at most 1, got {self.max_ratio}')

    def divide(self, lane: BucketSpec, forecast: Forecast) -> list[list[BucketSpec]]:
        """See ``Timed.divide``; uncompressed parameters share one bucket."""
        if lane.schedule is None or lane.schedule.density is None:
            return [[lane]]
        ready = [forecast.ready(name) for name in lane.names]
        layers = []
        for number, (now, following) in enumerate(zip(ready, [*ready[1:], ready[-1]], strict=True)):
            layer = lane.between(number, number + 1)
            density = self.density(layer, following - now, forecast)
            layers.append(replace(layer, schedule=lane.schedule.towards(density)))
        return [layers]

    def density(self, layer: BucketSpec, gap: float, forecast: Forecast) -> float:
        """Return the largest density of a layer that is hidden in ``gap`` seconds.

        Found by bisection of the number of elements sent.
        """
        schedule, numel = layer.schedule, layer.numel
        assert schedule is not None and schedule.density is not None

        def is_hidden(k: int) -> bool:
            attempt = replace(layer, schedule=schedule.towards(k / numel))
            times = forecast.bucket_times(attempt)
            return bool(times.processor + times.network <= gap)

        least = keep(numel, schedule.density)
        most = max(keep(numel, self.max_ratio), least)
        if least == most or not is_hidden(least):
            return schedule.density
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if is_hidden(middle) else (least, middle - 1)
        return max(min(least / numel, self.max_ratio), schedule.density)


def in_order(buckets: Iterable[BucketSpec], forecast: Forecast) -> list[BucketSpec]:
    """Sort buckets by when their gradients are complete."""
    return sorted(buckets, key=lambda bucket: max(map(forecast.ready, bucket.names)))


def best_of(ways: Sequence[Sequence[T]], seconds: Callable[[Sequence[T]], float]) -> Sequence[T]:
    """Choose one of the divisions of each lane, so that all together take the least ``seconds``.

    Where there are more than FEW combinations, each lane is decided by itself, starting from the
    first divisions of all lanes or from the last: whichever is better.
    """
    if math.prod(map(len, ways)) <= FEW:
        return min(itertools.product(*ways), key=seconds)
    starts = [[options[place] for options in ways] for place in (0, -1)]
    best = min(starts, key=seconds)
    for place, options in enumerate(ways):
        best = min(([*best[:place], way, *best[place + 1 :]] for way in options), key=seconds)
    return best


def extremes(request: PlanRequest) -> dict[str, Planner]:
    """Return the two planners between which merging lies.

    Where some parameters are compressed, the uncompressed ones share a bucket in both.
    """
    sparse = any(request.schedule_of(parameter) for parameter in request.parameters)
    apart = PerTensor() if sparse else PerTensor(dense_bytes=0)
    return {'per tensor': apart, 'whole model': Whole()}


def lanes(request: PlanRequest, forecast: Forecast) -> list[BucketSpec]:
    """Group all parameters that have elements by what they may share a bucket with.

    Each lane lists its parameters in the order in which their gradients appear.
    """
    found: dict[object, list[ParameterSpec]] = {}
    for parameter in reversed(request.parameters):
        if parameter.numel:
            key = sharing_key(parameter, request.schedule_of(parameter))
            found.setdefault(key, []).append(parameter)
    return [
        BucketSpec.of(
            sorted(members, key=lambda member: forecast.ready(member.name)),
            request.schedule_of(members[0]),
        )
        for members in found.values()
    ]


def group_cost(lane: BucketSpec, forecast: Forecast) -> GroupCost:
    """Return the times of groups of a lane's members, for ``dgc.planner.merging``.

    The time to compute one does not grow with the number of its members, unless a part of the
    composition reads their shapes.
    """
    ready = [forecast.ready(name) for name in lane.names]  # ascending, see ``lanes``
    return lambda first, stop: forecast.times(Stretch(lane, first, stop), ready[stop - 1])
