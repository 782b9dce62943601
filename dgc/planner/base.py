"""The interface of planners, and their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.planner.forecast import Forecast, Timing
from dgc.planner.plan import Plan
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


@dataclass(frozen=True)
class PlanRequest:
    """The input of a planner.

    Attributes:
        parameters: The trained parameters, in the model's order.
        rules, schedule: Decide which parameters are compressed, and at which density.
        world_size: The number of ranks.
        saved: The plan of an earlier run; None unless the planner has a ``saved_plan``.
        forecast: Measured times; None unless the planner needs timing.
    """

    parameters: Sequence[ParameterSpec]
    rules: LayerRules
    schedule: DensitySchedule
    world_size: int = 1
    saved: Plan | None = None
    forecast: Forecast | None = None

    def schedule_of(self, parameter: ParameterSpec) -> DensitySchedule | None:
        """Return the schedule of a parameter; None where it is never compressed."""
        own = self.rules.schedule(parameter.name, self.schedule)
        never = own.is_uncompressed or self.rules.is_dense(parameter.name, parameter.shape)
        return None if never else own


class Planner(ABC):
    """Divides the parameters of a model among buckets.

    A pure function of its request, so all ranks compute the same plan from the same request. It
    declares which measurements and files it needs, and ``dgc.wiring`` provides them.

    Attributes:
        saved_plan: Path of the plan.json of an earlier run that it needs; None for none. Rank 0
            reads it for all ranks.
    """

    saved_plan: str | None = None

    @property
    def needs_timing(self) -> bool:
        """Whether ``request.forecast`` is needed."""
        return False

    @abstractmethod
    def plan(self, request: PlanRequest) -> list[BucketSpec]:
        """Return the buckets, in the order in which they are to be sent: about that in which the
        backward pass completes them.

        Parameters of different type, device, momentum or schedule never share a bucket.
        """

    def saved_timing(self, request: PlanRequest) -> Timing | None:
        """Return the times that ``request.saved`` provides; None where they must be measured."""
        return None

    def predicted(self, request: PlanRequest, buckets: Sequence[BucketSpec]) -> dict[str, float]:
        """Return the predicted seconds of a step, by planner; empty without measured times.

        Args:
            request: As for ``plan``.
            buckets: What ``plan`` returned, whose prediction comes first.
        """
        return {}


def sharing_key(parameter: ParameterSpec, schedule: DensitySchedule | None) -> Hashable:
    """Return a key that is equal for parameters that may share a bucket."""
    momentum = (parameter.momentum, parameter.nesterov)
    return (parameter.dtype, parameter.device, *momentum, repr(schedule))
