"""Collectives among some of the ranks of an engine, built from point-to-point messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dgc.engines.base import Engine


class Group(Engine):
    """Some ranks of another engine, as an engine: a machine or a team, for an exchange.

    Every rank of the other engine belongs to exactly one group, all groups have the same size, and
    all ranks make the same calls at the same time, because some engines (Horovod) involve every
    rank in every message.

    Args:
        engine: sends the messages and counts them in its own traffic.
        ranks: the members' ranks in that engine, this one among them, in the order of the group.
    """

    name = 'group'
    has_thread = False

    def __init__(self, engine: Engine, ranks: Sequence[int]) -> None:
        super().__init__(ranks.index(engine.rank), len(ranks), local_rank=0, local_size=1)
        self._engine = engine
        self._ranks = ranks

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        return self._engine.send_recv(
            tensor,
            None if destination is None else self._ranks[destination],
            None if source is None else self._ranks[source],
        )

    def _all_gather(self, tensor: Tensor) -> Tensor:
        """Gather by Bruck's algorithm: the rows that a rank holds double in every round."""
        parts = tensor.view(1, -1)  # rows of ranks rank, rank + 1, …, modulo the size
        for gap in doublings(self.size):
            count = min(gap, self.size - gap)
            before, after = (self.rank - gap) % self.size, (self.rank + gap) % self.size
            received = self._send_recv(parts[:count].reshape(-1), before, after)
            assert received is not None
            parts = torch.cat([parts, received.view(count, -1)])
        return parts.roll(self.rank, 0)  # row 0 becomes that of rank 0

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        """Reduce to rank 0 and broadcast, both along a binomial tree."""
        self.reduce(tensor)
        return self._broadcast(tensor, 0)

    def reduce(self, tensor: Tensor) -> Tensor:
        """Sum ``tensor`` over the group into that of rank 0, along a binomial tree, in place.

        On other ranks ``tensor`` is left holding a partial sum.
        """
        for gap in doublings(self.size):
            sends = self.rank % (2 * gap) == gap
            receives = self.rank % (2 * gap) == 0 and self.rank + gap < self.size
            received = self._send_recv(
                tensor, self.rank - gap if sends else None, self.rank + gap if receives else None
            )
            if received is not None:
                tensor += received.view_as(tensor)
        return tensor

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        """Broadcast along a binomial tree: each round doubles the number of ranks that have it."""
        place = (self.rank - root) % self.size  # in a tree whose root is 0
        for gap in doublings(self.size):
            sends, receives = place < gap and place + gap < self.size, gap <= place < 2 * gap
            received = self._send_recv(
                tensor,
                (self.rank + gap) % self.size if sends else None,
                (self.rank - gap) % self.size if receives else None,
            )
            if received is not None:
                tensor.copy_(received.view_as(tensor))
        return tensor

    def _barrier(self) -> None:
        self._engine.barrier()  # of all groups: they make the same calls


def doublings(size: int) -> Iterator[int]:
    """Return the powers of two 1, 2, 4, … below ``size``."""
    gap = 1
    while gap < size:
        yield gap
        gap *= 2
