"""SparDL's Spar-All-Gather: summing one block over the teams (ICDE 2024, section III-B)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.engines.group import Group, doublings
from dgc.exchanges.blocks import Blocks
from dgc.exchanges.wire import Wire
from dgc.sparse import Sparse, cut, difference, merge


class TeamGather(ABC):
    """Sums the block of those workers, one a team, who own the same."""

    @abstractmethod
    def check(self, teams: int) -> None:
        """Raise ValueError where so many teams cannot be served."""

    @abstractmethod
    def sum(
        self, own: Sparse, blocks: Blocks, bucket: Bucket, codec: Codec, owners: Group
    ) -> Sparse:
        """At most ``blocks.limit`` elements of the sum, alike on all ``owners``.

        own: this worker's sum within its team. What is cut goes back into ``blocks``, divided
        among those who cut the same.
        """

    @abstractmethod
    def bytes_sent(self, numel: int, limit: int, codec: Codec, teams: int) -> float:
        """Bytes that one worker sends; the most that there can be."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same choices."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""


class RecursiveDoubling(TeamGather):
    """R-SAG: pairs at a distance of 1, 2, 4, … exchange all they have; a power of two of teams."""

    def check(self, teams: int) -> None:
        """See :meth:`TeamGather.check`."""
        if teams & (teams - 1):
            raise ValueError(
                f'recursive doubling needs a power of two of teams, got {teams}: use Bruck'
            )

    def sum(
        self, own: Sparse, blocks: Blocks, bucket: Bucket, codec: Codec, owners: Group
    ) -> Sparse:
        """See :meth:`TeamGather.sum`."""
        wire, rank, partial = Wire(bucket, blocks.limit, codec), owners.rank, own
        for gap in doublings(owners.size):
            other = rank ^ gap
            message = wire.encode(partial)
            received = owners.send_recv(message, other, other)
            pair = [wire.read(message, rank), wire.read(received, other)]
            blocks.add(difference(partial, pair[0]), holders=gap)
            partial, rest = cut(merge(pair), wire.k)  # a sum of two is the same in either order
            blocks.add(rest, holders=2 * gap)
        return partial

    def bytes_sent(self, numel: int, limit: int, codec: Codec, teams: int) -> float:
        """``log2 d`` messages of a block's share."""
        return math.log2(teams) * codec.capacity(numel, min(limit, numel))


class Bruck(TeamGather):
    """B-SAG: everybody's ``h`` largest go to everybody, for any number of teams ``d``.

    ``h`` lies between ``limit/d`` and ``limit``. It grows while the sum has fewer elements than
    ``limit``, and shrinks while it has more; the step doubles whenever it went the same way twice,
    up to ``limit``, and halves when it turns (section III-B, adaptive B-SAG).
    """

    def __init__(self) -> None:
        self._sizes: dict[str, AdaptiveSize] = {}

    def check(self, teams: int) -> None:
        """Any number will do."""

    def sum(
        self, own: Sparse, blocks: Blocks, bucket: Bucket, codec: Codec, owners: Group
    ) -> Sparse:
        """See :meth:`TeamGather.sum`."""
        size = self._sizes.setdefault(bucket.name, AdaptiveSize())
        wire = Wire(bucket, size.between(blocks.limit, owners.size), codec)
        mine, rest = cut(own, wire.k)
        blocks.add(rest)
        message, rounding = wire.write(mine)
        blocks.add(rounding)
        gathered = owners.all_gather(message)
        merged = merge([wire.read(part, rank) for rank, part in enumerate(gathered)])
        size.adapt(len(merged.values), blocks.limit)
        partial, rest = cut(merged, blocks.limit)
        blocks.add(rest, holders=owners.size)
        return partial

    def bytes_sent(self, numel: int, limit: int, codec: Codec, teams: int) -> float:
        """``d-1`` messages of a block's whole share."""
        return (teams - 1) * codec.capacity(numel, min(limit, numel))

    def state_dict(self) -> dict[str, Any]:
        """The sizes, by bucket."""
        return {'sizes': {name: size.state_dict() for name, size in self._sizes.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        saved = state.get('sizes', {})
        self._sizes = {name: AdaptiveSize(**numbers) for name, numbers in saved.items()}


class AdaptiveSize:
    """B-SAG's ``h`` of one bucket: at first as large as it may be.

    direction: 1 while it grows, -1 while it shrinks; streak: how often in a row.
    """

    def __init__(self, size: int = 0, step: int = 1, direction: int = 0, streak: int = 0) -> None:
        self._size, self._step, self._direction, self._streak = size, step, direction, streak

    def between(self, limit: int, teams: int) -> int:
        """``h``, from ``limit/d`` to ``limit``."""
        self._size = min(max(self._size or limit, -(-limit // teams)), limit)
        return self._size

    def adapt(self, merged: int, limit: int) -> None:
        """The sum had ``merged`` elements; it keeps ``limit``."""
        direction = (merged < limit) - (merged > limit)
        if direction == 0:
            return
        if direction == self._direction:
            self._streak += 1
            if self._streak % 2 == 0:
                self._step = min(2 * self._step, limit)
        else:
            self._streak, self._step = 1, max(self._step // 2, 1)
        self._direction = direction
        self._size = max(self._size + direction * self._step, 1)

    def state_dict(self) -> dict[str, int]:
        """Its four numbers."""
        return {
            'size': self._size,
            'step': self._step,
            'direction': self._direction,
            'streak': self._streak,
        }
