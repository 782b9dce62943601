"""The buckets of a saved plan, from a file or from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.planner.base import Planner, PlanRequest, sharing_key
from dgc.planner.forecast import Timing
from dgc.planner.plan import Plan, PlanError


@dataclass(frozen=True)
class Replay(Planner):
    """The buckets of a saved plan, whichever planner made it.

    Args:
        file: plan.json of a run. Rank 0 reads it for all ranks.
    """

    file: str

    @property
    def saved_plan(self) -> str:  # type: ignore[override]
        """The path of the plan."""
        return self.file

    def plan(self, request: PlanRequest) -> list[BucketSpec]:
        """See ``Planner.plan``.

        Raises:
            PlanError: Where the plan is of another model, or of another density.
        """
        if request.saved is None:
            raise PlanError(f'the plan of {self.file} was not read')
        ours = {each.name: each for each in request.parameters if each.numel}
        self._check_names(request.saved, ours)
        return [self._bucket(each, ours, request) for each in request.saved.buckets]

    def _check_names(self, plan: Plan, known: Mapping[str, ParameterSpec]) -> None:
        """Raise PlanError unless the plan has every parameter once, in the same shape."""
        listed = [member for bucket in plan.buckets for member in bucket.members]
        names = {member.name for member in listed}
        for member in listed:
            if member.name not in known:
                raise PlanError(f'{self.file} is of another model: this one has no {member.name}')
            if known[member.name].shape != member.shape:
                raise PlanError(
                    f'{self.file} is of another model: {member.name} has shape '
                    f'{list(member.shape)} there and {list(known[member.name].shape)} here'
                )
        missing = [name for name in known if name not in names]
        if missing or len(names) < len(listed):
            what = f'it lacks {", ".join(missing)}' if missing else 'it has a parameter twice'
            raise PlanError(f'{self.file} is of another model: {what}')

    def _bucket(
        self, saved: BucketSpec, ours: Mapping[str, ParameterSpec], request: PlanRequest
    ) -> BucketSpec:
        """Return a saved bucket with this run's type, device and warm-up."""
        members = [ours[name] for name in saved.names]
        schedules = [request.schedule_of(member) for member in members]
        own = schedules[0]
        requested = None if own is None else own.density
        if requested != saved.requested or (own is None) == (saved.schedule is not None):
            raise PlanError(
                f'{self.file} has {members[0].name} at {percent(saved.requested)}, this run has it '
                f'at {percent(requested)}: plan anew'
            )
        if len(set(map(sharing_key, members, schedules))) > 1:
            raise PlanError(
                f'{self.file} has {members[0].name} and {members[-1].name} in one bucket: here '
                'they differ in type, momentum or density, so they may not share one'
            )
        if own is not None:
            own = own.towards(saved.density)
        return replace(BucketSpec.of(members, own), requested=requested)


@dataclass(frozen=True)
class Kept(Planner):
    """The buckets of a plan in memory, as of a checkpoint; those of another planner where the plan
    does not fit, as after a change of settings.

    Args:
        content: The plan; the same on all ranks.
        otherwise: The configured planner, which also predicts times.
    """

    content: Plan
    otherwise: Planner

    @property
    def saved_plan(self) -> str | None:  # type: ignore[override]
        """As the configured planner."""
        return self.otherwise.saved_plan

    @property
    def needs_timing(self) -> bool:
        """As the configured planner."""
        return self.otherwise.needs_timing

    def plan(self, request: PlanRequest) -> list[BucketSpec]:
        """See ``Planner.plan``."""
        try:
            return Replay('the kept plan').plan(replace(request, saved=self.content))
        except PlanError:
            return self.otherwise.plan(request)

    def saved_timing(self, request: PlanRequest) -> Timing | None:
        """As the configured planner."""
        return self.otherwise.saved_timing(request)

    def predicted(self, request: PlanRequest, buckets: Sequence[BucketSpec]) -> dict[str, float]:
        """As the configured planner, for these buckets."""
        return self.otherwise.predicted(request, buckets)


def percent(density: float | None) -> str:
    """Return a density as a percentage, for messages."""
    return 'no density (uncompressed)' if density is None else f'density {density:g}'
