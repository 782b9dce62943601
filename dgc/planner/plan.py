"""A division of parameters into buckets, saved as plan.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dgc.bucket_spec import BucketSpec
from dgc.engines.base import Engine
from dgc.planner.broadcast import broadcast_json
from dgc.planner.forecast import Timing

VERSION = 2
ROUGH = 0.25  # relative error of measured costs, above which predictions decide nothing


class PlanError(ValueError):
    """A file holds no plan, or one that does not fit this run."""


@dataclass(frozen=True)
class Plan:
    """A division into buckets.

    Attributes:
        buckets: In the order in which they are sent.
        predicted: Seconds of a step, by planner; empty where nothing was measured.
        timing: What was measured; None for nothing.
    """

    buckets: Sequence[BucketSpec]
    predicted: Mapping[str, float] = field(default_factory=dict)
    timing: Timing | None = None

    def save(self, file: Path) -> None:
        """Write this plan as JSON, for ``Replay``."""
        file.write_text(json.dumps(self.to_json(), indent=1) + '\n')

    def to_json(self) -> dict[str, Any]:
        """Return this as numbers, strings, lists and dictionaries."""
        return {
            'version': VERSION,
            'predicted_seconds': self.predicted,
            'buckets': [bucket.to_json() for bucket in self.buckets],
            'timing': None if self.timing is None else self.timing.to_json(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """Read what ``to_json`` returned.

        Raises:
            PlanError: For a plan of another version.
            KeyError, TypeError, ValueError, AttributeError: For anything else.
        """
        if content['version'] != VERSION:
            raise PlanError(
                f'a plan of version {content["version"]}, and version {VERSION} is needed: '
                'train without a replayed plan once, which writes a new one'
            )
        predicted = content['predicted_seconds'].items()
        timing = content['timing']
        return cls(
            [BucketSpec.from_json(each) for each in content['buckets']],
            {str(name): float(seconds) for name, seconds in predicted},
            None if timing is None else Timing.from_json(timing),
        )

    def table(self) -> str:
        """Return a printable table, one line per bucket."""
        lines = [f'{"bucket":>6}{"elements":>12}{"density":>13}{"parameters":>12}  from, to']
        for number, bucket in enumerate(self.buckets, 1):
            names = bucket.names
            density = 'uncompressed' if bucket.density is None else f'{bucket.density:.3%}'
            ends = names[0] if len(names) == 1 else f'{names[0]}, {names[-1]}'
            lines.append(f'{number:>6}{bucket.numel:>12,}{density:>13}{len(names):>12}  {ends}')
        return '\n'.join(lines)

    def summary(self) -> str:
        """Return one line: how many buckets there are, predicted times, and their error if that is
        so large that another planner may be better."""
        times = [f'{name} {1e3 * seconds:.0f} ms' for name, seconds in self.predicted.items()]
        predicted = f'; predicted per step: {", ".join(times)}' if times else ''
        count = sum(len(bucket.members) for bucket in self.buckets)
        text = f'plan: {count} parameters in {len(self.buckets)} buckets{predicted}'
        error = 0.0 if self.timing is None else self.timing.costs.error
        if times and error > ROUGH:
            text += f'; measured with an error of {error:.0%}, which cannot tell which is the best'
        return text


def read(file: str) -> Plan:
    """Return the plan that ``Plan.save`` wrote.

    Raises:
        PlanError: For any other file.
    """
    try:
        return Plan.from_json(json.loads(Path(file).read_text()))
    except PlanError as error:
        raise PlanError(f'{file} is {error}') from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PlanError(f'{file} holds no plan: {error!r}') from error


def read_on_rank_0(file: str, engine: Engine, device: torch.device) -> Plan:
    """Return the plan that rank 0 reads from ``file``, on all ranks. A collective.

    Raises:
        PlanError: On all ranks, where that is no plan.
    """
    content: dict[str, Any] = {}
    if engine.rank == 0:
        try:
            content['plan'] = read(file).to_json()
        except PlanError as error:
            content['refused'] = str(error)
    received = broadcast_json(engine, content, device)
    if 'refused' in received:
        raise PlanError(received['refused'])
    return Plan.from_json(received['plan'])
