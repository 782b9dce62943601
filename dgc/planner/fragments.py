"""Buckets that keep the fragments of a model apart (Streaming DiLoCo, arXiv 2501.18512)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dgc.bucket_spec import BucketSpec
from dgc.planner.base import Planner, PlanRequest
from dgc.planner.forecast import Timing


@dataclass(frozen=True)
class Fragments(Planner):
    """The buckets of another planner, each cut into one for every fragment that it has a part of.

    Args:
        planner: Plans the whole model.
        count: Number of fragments, see ``strided``.
    """

    planner: Planner
    count: int

    @property
    def saved_plan(self) -> str | None:  # type: ignore[override]
        """That of the other planner."""
        return self.planner.saved_plan

    @property
    def needs_timing(self) -> bool:
        """Whether the other planner needs times."""
        return self.planner.needs_timing

    def plan(self, request: PlanRequest) -> list[BucketSpec]:
        """Return the buckets of the first fragment, then those of the second, and so on."""
        whole = self.planner.plan(request)
        names = [parameter.name for parameter in request.parameters if parameter.numel]
        parts = [
            part_of(bucket, fragment) for fragment in strided(names, self.count) for bucket in whole
        ]
        return [part for part in parts if part.members]

    def saved_timing(self, request: PlanRequest) -> Timing | None:
        """Return what the other planner has."""
        return self.planner.saved_timing(request)

    def predicted(self, request: PlanRequest, buckets: Sequence[BucketSpec]) -> dict[str, float]:
        """Return what the other planner predicts."""
        return self.planner.predicted(request, buckets)


def strided(names: Sequence[str], count: int) -> list[list[str]]:
    """Divide parameters into ``count`` fragments: layer l, counted from 0, is in fragment l mod
    ``count``.

    A layer has the parameters whose names agree up to the last dot.

    Raises:
        ValueError: For fewer layers than fragments.
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layer, dot, _ = name.rpartition('.')
        layers.setdefault(layer if dot else name, []).append(name)
    if not 1 <= count <= len(layers):
        raise ValueError(
            f'fragments must be 1 to {len(layers)}, the number of layers with trained parameters, '
            f'got {count}'
        )
    fragments: list[list[str]] = [[] for _ in range(count)]
    for number, members in enumerate(layers.values()):
        fragments[number % count] += members
    return fragments


def part_of(bucket: BucketSpec, names: Collection[str]) -> BucketSpec:
    """Return a bucket of those members that are among ``names``; it may have none."""
    members, offset = [], 0
    for member in bucket.members:
        if member.name in names:
            members.append(member._replace(offset=offset))
            offset += member.numel
    return replace(bucket, members=tuple(members))
