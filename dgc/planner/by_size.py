"""Neighbours travel together until a bucket is full: nothing needs to be measured."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from dgc.buckets import Bucket
from dgc.planner.base import Named, Planner, kind, own_schedule, size
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule

SPARSE_BYTES = 25 * 2**20  # measured: docs/performance.md
DENSE_BYTES = 25 * 2**20  # where PyTorch's DDP and Horovod cut too: late enough to amortise latency


@dataclass(frozen=True)
class BySize(Planner):
    """Neighbours share a bucket until it is full; what stays dense has buckets of its own.

    A bucket costs a search, an encoding and a collective however small it is. In a shared one the
    largest elements are sought among all its parameters together. Buckets are listed in the order
    in which the backward pass tends to finish them: from the last parameter to the first.
    Parameters of different type, device, momentum or ratio never share one.

    sparse_bytes: of the gradients in one sparse bucket, unless a single one has more.
    dense_bytes: of those in one dense bucket.
    """

    sparse_bytes: int = SPARSE_BYTES
    dense_bytes: int = DENSE_BYTES

    def plan(
        self,
        parameters: Sequence[Named],
        rules: LayerRules,
        schedule: RatioSchedule,
        buffers: Sequence[str],
    ) -> list[Bucket]:
        """See :meth:`Planner.plan`; sparse buckets come first."""
        sparse, dense = Groups(self.sparse_bytes), Groups(self.dense_bytes)
        for name, parameter, group in reversed(parameters):
            if not parameter.numel():
                continue
            own = own_schedule(name, parameter, rules, schedule)
            (dense if own is None else sparse).add((name, parameter, group), own)
        return [
            Bucket(members, own, buffers)
            for groups in (sparse, dense)
            for members, own in groups.in_order()
        ]


@dataclass(frozen=True)
class PerTensor(BySize):
    """Each sparse parameter by itself, as the paper and its release have it."""

    sparse_bytes: int = 0


@dataclass(frozen=True)
class Whole(BySize):
    """All sparse parameters in one bucket, which is complete last; so all dense ones."""

    sparse_bytes: int = sys.maxsize
    dense_bytes: int = sys.maxsize


class Groups:
    """Parameters gathered until ``limit`` bytes, separately for each kind that may share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._groups: list[tuple[list[Named], RatioSchedule | None]] = []
        self._open: dict[Hashable, list[Named]] = {}
        self._last: dict[int, int] = {}  # group → number of the parameter added last
        self._added = 0

    def add(self, named: Named, own: RatioSchedule | None) -> None:
        """Append to the open group of this kind, or open another when that one is full."""
        its = kind(named, own)
        members = self._open.get(its)
        if members is None or size(members) + size([named]) > self.limit:
            members = self._open[its] = []
            self._groups.append((members, own))
        members.append(named)
        self._last[id(members)] = self._added
        self._added += 1

    def in_order(self) -> list[tuple[list[Named], RatioSchedule | None]]:
        """The groups and their schedules, by when their last parameter was added."""
        return sorted(self._groups, key=lambda group: self._last[id(group[0])])
