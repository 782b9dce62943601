"""Plans as files: what a run writes beside its log, and what replays it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dgc.buckets import Bucket
from dgc.planner.base import Named, Planner, kind, own_schedule
from dgc.planner.broadcast import broadcast_json
from dgc.planner.forecast import Timing
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule

if TYPE_CHECKING:
    from dgc.composition import Composition
    from dgc.engines.base import Engine
    from dgc.profile import Profile

VERSION = 1


@dataclass(frozen=True)
class PlannedBucket:
    """parameters: name to number of elements, in their order. ratio: after the warm-up; None where
    the bucket is always dense. asked: what the run's schedule and rules say, of which an adaptive
    planner makes its own."""

    parameters: Mapping[str, int]
    ratio: float | None
    asked: float | None

    @property
    def numel(self) -> int:
        """Its elements."""
        return sum(self.parameters.values())


@dataclass(frozen=True)
class Plan:
    """A division into buckets, in the order in which they are sent.

    foreseen: seconds of a step, by planner; without any where nothing was measured.
    timing: what was measured; None for nothing.
    """

    buckets: Sequence[PlannedBucket]
    foreseen: Mapping[str, float] = field(default_factory=dict)
    timing: Timing | None = None

    @classmethod
    def of(
        cls,
        buckets: Sequence[Bucket],
        rules: LayerRules,
        schedule: RatioSchedule,
        foreseen: Mapping[str, float] | None = None,
        timing: Timing | None = None,
    ) -> Plan:
        """What a planner made."""
        return cls([planned(each, rules, schedule) for each in buckets], foreseen or {}, timing)

    def save(self, file: Path) -> None:
        """Write it, to be replayed."""
        file.write_text(json.dumps(self.to_json(), indent=1) + '\n')

    def to_json(self) -> dict[str, Any]:
        """As numbers, lists and dictionaries."""
        return {
            'version': VERSION,
            'foreseen_seconds': self.foreseen,
            'buckets': [asdict(bucket) for bucket in self.buckets],
            'timing': None if self.timing is None else self.timing.to_json(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """From a file's content. Raises KeyError, TypeError, ValueError or AttributeError where
        that is no plan."""
        if content['version'] != VERSION:
            raise ValueError(f'it is of version {content["version"]}, known is {VERSION}')
        if not all(found['parameters'] for found in content['buckets']):
            raise ValueError('it has a bucket of no parameters')
        buckets = [
            PlannedBucket(
                {str(name): int(numel) for name, numel in found['parameters'].items()},
                None if found['ratio'] is None else float(found['ratio']),
                None if found['asked'] is None else float(found['asked']),
            )
            for found in content['buckets']
        ]
        foreseen = content['foreseen_seconds'].items()
        timing = content['timing']
        return cls(
            buckets,
            {str(name): float(seconds) for name, seconds in foreseen},
            None if timing is None else Timing.from_json(timing),
        )

    def table(self) -> str:
        """What a person reads: a line a bucket."""
        lines = [f'{"bucket":>6}{"elements":>12}{"ratio":>9}{"parameters":>12}  from, to']
        for number, bucket in enumerate(self.buckets, 1):
            names = [*bucket.parameters]
            ratio = 'dense' if bucket.ratio is None else f'{bucket.ratio:.3%}'
            ends = names[0] if len(names) == 1 else f'{names[0]}, {names[-1]}'
            lines.append(f'{number:>6}{bucket.numel:>12,}{ratio:>9}{len(names):>12}  {ends}')
        return '\n'.join(lines)

    def summary(self) -> str:
        """One line: how many buckets, and what was foreseen."""
        times = [f'{name} {1e3 * seconds:.0f} ms' for name, seconds in self.foreseen.items()]
        foreseen = f'; foreseen: {", ".join(times)} a step' if times else ''
        count = sum(len(bucket.parameters) for bucket in self.buckets)
        return f'plan: {count} parameters in {len(self.buckets)} buckets{foreseen}'


def planned(bucket: Bucket, rules: LayerRules, schedule: RatioSchedule) -> PlannedBucket:
    """What a plan says of a bucket."""
    first = bucket.members[0]
    own = own_schedule(first.name, first.parameter, rules, schedule)
    return PlannedBucket(
        {member.name: member.parameter.numel() for member in bucket.members},
        None if bucket.schedule is None else bucket.schedule.ratio,
        None if own is None else own.ratio,
    )


class PlanError(ValueError):
    """A saved plan is none, or not of this model."""


@dataclass(frozen=True)
class Replay(Planner):
    """The buckets of a saved plan, whatever made it.

    file: plan.json of a run. Rank 0's is everybody's.
    """

    file: str
    known: Plan | None = None

    def informed(
        self,
        composition: Composition,
        engine: Engine,
        parameters: Sequence[Named],
        profile: Callable[[], Profile] | None,
    ) -> Replay:
        """Rank 0 reads the file. Raises PlanError, on all ranks, where it holds no plan."""
        return replace(self, known=shared(self.file, engine, parameters[0][1].device))

    def plan(
        self,
        parameters: Sequence[Named],
        rules: LayerRules,
        schedule: RatioSchedule,
        buffers: Sequence[str],
    ) -> list[Bucket]:
        """See :meth:`Planner.plan`. Raises PlanError where the plan is of another model, or of
        another ratio."""
        known = self.known or read(self.file)
        ours = {named[0]: named for named in parameters if named[1].numel()}
        self._check_names(known, ours)
        return [
            self._bucket(each, [ours[name] for name in each.parameters], rules, schedule, buffers)
            for each in known.buckets
        ]

    def _check_names(self, plan: Plan, known: Mapping[str, Named]) -> None:
        """Every parameter once, with as many elements."""
        listed = [item for bucket in plan.buckets for item in bucket.parameters.items()]
        names = {name for name, _ in listed}
        for name, numel in listed:
            if name not in known:
                raise PlanError(f'{self.file} is of another model: this one has no {name}')
            if known[name][1].numel() != numel:
                raise PlanError(
                    f'{self.file} is of another model: {name} has {numel:,} elements there and '
                    f'{known[name][1].numel():,} here'
                )
        missing = [name for name in known if name not in names]
        if missing or len(names) < len(listed):
            what = f'it lacks {", ".join(missing)}' if missing else 'it has a parameter twice'
            raise PlanError(f'{self.file} is of another model: {what}')

    def _bucket(
        self,
        planned: PlannedBucket,
        members: list[Named],
        rules: LayerRules,
        schedule: RatioSchedule,
        buffers: Sequence[str],
    ) -> Bucket:
        owns = [own_schedule(name, parameter, rules, schedule) for name, parameter, _ in members]
        asked = None if owns[0] is None else owns[0].ratio
        if asked != planned.asked:
            raise PlanError(
                f'{self.file} has {members[0][0]} at {spelled(planned.asked)}, this run has it at '
                f'{spelled(asked)}: plan anew'
            )
        if len({kind(named, own) for named, own in zip(members, owns, strict=True)}) > 1:
            raise PlanError(
                f'{self.file} has {members[0][0]} and {members[-1][0]} in one bucket: here they '
                'differ in type, momentum or ratio, so they may not'
            )
        own = owns[0]
        if own is not None and planned.ratio is not None:
            own = own.towards(planned.ratio)
        return Bucket(members, own, buffers)


def read(file: str) -> Plan:
    """What ``Plan.save`` wrote. Raises PlanError for anything else."""
    try:
        return Plan.from_json(json.loads(Path(file).read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PlanError(f'{file} holds no plan: {error!r}') from error


def shared(file: str, engine: Engine, device: torch.device) -> Plan:
    """What rank 0 reads from ``file``. Raises PlanError, on all ranks, where that is no plan."""
    ours: dict[str, Any] = {}
    if engine.rank == 0:
        try:
            ours['plan'] = read(file).to_json()
        except PlanError as error:
            ours['refused'] = str(error)
    told = broadcast_json(engine, ours, device)
    if 'refused' in told:
        raise PlanError(told['refused'])
    return Plan.from_json(told['plan'])


def spelled(ratio: float | None) -> str:
    """For people."""
    return 'no ratio (dense)' if ratio is None else f'ratio {ratio:g}'
