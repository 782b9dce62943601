"""SparDL's Spar-All-Gather: summing one block over the teams (ICDE 2024, section III-B)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import MutableMapping

from dgc.codec import Codec
from dgc.engines.group import doublings
from dgc.exchanges.base import Context
from dgc.exchanges.blocks import Blocks
from dgc.sparse import Sparse, cut, difference, merge


class TeamGather(ABC):
    """Sums a block over the ranks that own it, one of each team."""

    @abstractmethod
    def check(self, teams: int) -> None:
        """Raise ValueError where this number of teams cannot be served."""

    @abstractmethod
    def sum(self, own: Sparse, blocks: Blocks, context: Context) -> Sparse:
        """Return at most ``blocks.limit`` elements of the sum, alike on all owners.

        Args:
            own: This rank's sum within its team.
            blocks: What is cut is added there, divided among the ranks that cut the same.
            context: Its engine is the group of the owners.
        """

    @abstractmethod
    def bytes_sent(self, numel: int, limit: int, codec: Codec, teams: int) -> float:
        """Return the largest number of bytes that one rank sends."""


class RecursiveDoubling(TeamGather):
    """R-SAG: pairs at a distance of 1, 2, 4, … exchange all they have; a power of two of teams."""

    def check(self, teams: int) -> None:
        """Raise ValueError where the teams are no power of two."""
        if teams & (teams - 1):
            raise ValueError(
                f'recursive doubling needs a power of two of teams, got {teams}: use Bruck'
            )

    def sum(self, own: Sparse, blocks: Blocks, context: Context) -> Sparse:
        """See ``TeamGather.sum``."""
        owners, wire = context.engine, context.wire(blocks.limit)
        rank, partial = owners.rank, own
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
        """Return the bytes of ``log2 d`` messages of ``limit`` elements."""
        return math.log2(teams) * codec.capacity(numel, min(limit, numel))


class Bruck(TeamGather):
    """B-SAG: the ``h`` largest of every owner go to all owners, for any number of teams ``d``.

    ``h`` lies between ``limit/d`` and ``limit``. It grows while the sum has fewer elements than
    ``limit``, and shrinks while it has more; the step doubles at every second move in the same
    direction, up to ``limit``, and halves when the direction changes (section III-B, adaptive
    B-SAG).

    Args:
        start: Where ``h`` begins: at this fraction of ``limit``, but never below ``limit/d``. 1
            loses least in the first steps; 0 begins with the shortest messages.

    Raises:
        ValueError: For a start outside [0, 1].
    """

    def __init__(self, start: float = 1.0) -> None:
        if not 0 <= start <= 1:
            raise ValueError(f'start must be from 0 to 1, got {start}')
        self.start = start

    def check(self, teams: int) -> None:
        """Accept every number of teams."""

    def sum(self, own: Sparse, blocks: Blocks, context: Context) -> Sparse:
        """See ``TeamGather.sum``."""
        owners, size = context.engine, AdaptiveSize(context.state['gather'], self.start)
        wire = context.wire(size.between(blocks.limit, owners.size))
        mine, rest = cut(own, wire.k)
        blocks.add(rest)
        message, rounding = wire.write(mine)
        blocks.add(rounding)
        gathered = owners.all_gather(message)
        merged = merge(wire.read_all(gathered))
        size.adapt(len(merged.values), blocks.limit)
        partial, rest = cut(merged, blocks.limit)
        blocks.add(rest, holders=owners.size)
        return partial

    def bytes_sent(self, numel: int, limit: int, codec: Codec, teams: int) -> float:
        """Return the bytes of ``d-1`` messages of ``limit`` elements."""
        return (teams - 1) * codec.capacity(numel, min(limit, numel))


class AdaptiveSize:
    """B-SAG's ``h`` of one bucket.

    Args:
        state: Keeps ``size``, ``step``, ``direction`` (1 while h grows, -1 while it shrinks) and
            ``streak`` (moves in the same direction) between steps.
        start: See ``Bruck``.
    """

    def __init__(self, state: MutableMapping[str, int], start: float = 1.0) -> None:
        self._state, self._start = state, start

    def between(self, limit: int, teams: int) -> int:
        """Return ``h``, limited to ``limit/d`` … ``limit``."""
        first = round(self._start * limit)
        size = min(max(self._state.get('size', first), -(-limit // teams)), limit)
        self._state['size'] = size
        return size

    def adapt(self, merged: int, limit: int) -> None:
        """Move ``h`` towards a sum of ``limit`` elements; this step's had ``merged``."""
        direction = (merged < limit) - (merged > limit)
        if direction == 0:
            return
        step, streak = self._state.get('step', 1), self._state.get('streak', 0)
        if direction == self._state.get('direction', 0):
            streak += 1
            if streak % 2 == 0:
                step = min(2 * step, limit)
        else:
            streak, step = 1, max(step // 2, 1)
        size = max(self._state['size'] + direction * step, 1)
        self._state.update(size=size, step=step, direction=direction, streak=streak)
