"""Collectives among some of an engine's workers, by messages between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dgc.engines.base import Engine


class Group(Engine):
    """Some workers of another engine, as an engine: what a team or a machine is to an exchange.

    Every worker of the other engine belongs to one group, all of the same size, and all of them
    make the same calls at the same time: some engines have all ranks enter every message.

    engine: that carries the messages, and counts them.
    ranks: of the members in that engine, this worker among them, in the group's order.
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
        """Bruck's: the number of parts that a worker holds doubles in every round."""
        parts = tensor.view(1, -1)  # of ranks rank, rank + 1, …
        for gap in doublings(self.size):
            count = min(gap, self.size - gap)
            before, after = (self.rank - gap) % self.size, (self.rank + gap) % self.size
            received = self._send_recv(parts[:count].reshape(-1), before, after)
            assert received is not None
            parts = torch.cat([parts, received.view(count, -1)])
        return parts.roll(self.rank, 0)

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        """Up a binomial tree to rank 0, and down again."""
        self.reduce(tensor)
        return self._broadcast(tensor, 0)

    def reduce(self, tensor: Tensor) -> Tensor:
        """Rank 0's ``tensor`` becomes the sum, along a binomial tree; the others' is used up."""
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
        """Down a binomial tree."""
        place = (self.rank - root) % self.size
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
        self._engine.barrier()  # all groups come here at the same time


def doublings(size: int) -> Iterator[int]:
    """1, 2, 4, … below ``size``."""
    gap = 1
    while gap < size:
        yield gap
        gap *= 2
