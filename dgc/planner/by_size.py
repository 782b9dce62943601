"""Planners by size, which need no measurement."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.planner.base import Planner, PlanRequest, sharing_key
from dgc.schedule import DensitySchedule

SPARSE_BYTES = 25 * 2**20  # measured: docs/performance.md
DENSE_BYTES = 25 * 2**20  # as PyTorch's DDP and Horovod: large enough to amortise latency


@dataclass(frozen=True)
class BySize(Planner):
    """Neighbours share a bucket until it is full; uncompressed parameters have their own buckets.

    A bucket costs a search, an encoding and a collective however small it is. In a shared one the
    largest elements are selected among all its parameters together. Buckets are listed from the
    last parameter to the first, which is about the order in which the backward pass completes them.

    Args:
        sparse_bytes: Bytes of the gradients in one compressed bucket, unless a single parameter
            has more.
        dense_bytes: The same for uncompressed buckets.
    """

    sparse_bytes: int = SPARSE_BYTES
    dense_bytes: int = DENSE_BYTES

    def plan(self, request: PlanRequest) -> list[BucketSpec]:
        """See ``Planner.plan``; compressed buckets come first."""
        sparse, dense = Groups(self.sparse_bytes), Groups(self.dense_bytes)
        for parameter in reversed(request.parameters):
            if parameter.numel:
                schedule = request.schedule_of(parameter)
                (dense if schedule is None else sparse).add(parameter, schedule)
        return [*sparse.buckets(), *dense.buckets()]


@dataclass(frozen=True)
class PerTensor(BySize):
    """Each compressed parameter has a bucket of its own, as in the paper and its release."""

    sparse_bytes: int = 0


@dataclass(frozen=True)
class Whole(BySize):
    """All compressed parameters share one bucket, which is complete last; so do the others."""

    sparse_bytes: int = sys.maxsize
    dense_bytes: int = sys.maxsize


@dataclass
class Group:
    """Parameters of one bucket.

    Attributes:
        last: The number of the parameter that was added last, counted over all groups.
    """

    schedule: DensitySchedule | None
    members: list[ParameterSpec] = field(default_factory=list)
    nbytes: int = 0
    last: int = 0


class Groups:
    """Collects parameters into groups of up to ``limit`` bytes, separately for each sharing key."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._groups: list[Group] = []
        self._open: dict[Hashable, Group] = {}
        self._added = 0

    def add(self, parameter: ParameterSpec, schedule: DensitySchedule | None) -> None:
        """Append to the open group of this kind, or open another when that one is full."""
        key = sharing_key(parameter, schedule)
        group = self._open.get(key)
        if group is None or group.nbytes + parameter.nbytes > self.limit:
            group = self._open[key] = Group(schedule)
            self._groups.append(group)
        group.members.append(parameter)
        group.nbytes += parameter.nbytes
        group.last = self._added
        self._added += 1

    def buckets(self) -> Sequence[BucketSpec]:
        """Return the groups as buckets, by when their last parameter was added."""
        in_order = sorted(self._groups, key=lambda group: group.last)
        return [BucketSpec.of(group.members, group.schedule) for group in in_order]
