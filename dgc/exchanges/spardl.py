"""SparDL: sparse reduce-scatter, then all-gather (Zhao et al., ICDE 2024, arXiv 2304.00737)."""

from __future__ import annotations

from typing import Any

import torch

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors.base import Compressor, keep
from dgc.compressors.topk import TopK
from dgc.engines.base import Engine
from dgc.engines.group import Group, doublings
from dgc.exchanges.base import Exchange, Exchanged
from dgc.exchanges.blocks import Blocks
from dgc.exchanges.residuals import GlobalResiduals, Residuals
from dgc.exchanges.team_gather import Bruck, RecursiveDoubling, TeamGather
from dgc.exchanges.wire import Wire
from dgc.sparse import Sparse, join


class SparDL(Exchange):
    """Blocks are summed by one owner each, who keeps a block's share of the ``k`` elements.

    ``P`` workers are ``d`` teams of ``m = P/d``. Spar-Reduce-Scatter sums within each team in
    ⌈log2 m⌉ rounds, for any ``m``; Spar-All-Gather sums the teams' blocks; Bruck's all-gather
    spreads the blocks within each team. More teams take fewer rounds, and more bytes. Every block
    is cut to ``k/m`` before it travels, so no message grows.

    teams: ``d``, which must divide the number of workers.
    gather: how the teams' blocks are summed; by default recursive doubling where ``d`` is a power
        of two, else Bruck's.
    compressor: chooses from a dense block; exact top-k by default.
    residuals: what is kept of what was cut.
    """

    selects = True

    def __init__(
        self,
        teams: int = 1,
        gather: TeamGather | None = None,
        compressor: Compressor | None = None,
        residuals: Residuals | None = None,
    ) -> None:
        if teams < 1:
            raise ValueError(f'teams must be at least 1, got {teams}')
        self.teams = teams
        self.gather = gather or (Bruck() if teams & (teams - 1) else RecursiveDoubling())
        self.gather.check(teams)
        self.compressor = compressor or TopK()
        self.residuals = residuals or GlobalResiduals()
        self.loses = self.residuals.loses

    def check(self, engine: Engine, device: torch.device | str = 'cpu') -> None:
        """See :meth:`Exchange.check`."""
        if engine.size % self.teams:
            raise ValueError(
                f'teams={self.teams} does not divide {engine.size} workers: choose a divisor'
            )

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """At most ``⌈k/m⌉`` elements of each of the ``m`` blocks of the sum of all."""
        size = engine.size // self.teams
        number, place = divmod(engine.rank, size)
        team = Group(engine, range(number * size, (number + 1) * size))
        owners = Group(engine, range(place, engine.size, size))
        k = keep(bucket.numel, bucket.ratio)
        blocks = Blocks(bucket.hold(sparse.values), size, k, self.compressor, bucket.name)
        own = reduce_scatter(blocks, bucket, codec, team)
        if self.teams > 1:
            own = self.gather.sum(own, blocks, bucket, codec, owners)
        wire = Wire(bucket, blocks.limit, codec)
        message, rounding = wire.write(own)
        blocks.add(rounding, holders=self.teams)
        gathered = team.all_gather(message)
        parts = [wire.read(part, rank) for rank, part in enumerate(gathered)]
        return self.residuals.settle(sparse.values, blocks, join(parts, bucket.numel))

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """A message a round of the reduce-scatter, the teams' gather, ``m-1`` shares of a block."""
        size = workers // self.teams
        limit = max(-(-k // size), 1)
        scattered = sum(
            codec.capacity(numel, min(bag_of(gap, size) * limit, numel)) for gap in doublings(size)
        )
        between = self.gather.bytes_sent(numel, limit, codec, self.teams)
        return scattered + between + (size - 1) * codec.capacity(numel, min(limit, numel))

    def state_dict(self) -> dict[str, Any]:
        """That of the parts that have one."""
        return {'gather': self.gather.state_dict(), 'compressor': self.compressor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self.gather.load_state_dict(state.get('gather', {}))
        self.compressor.load_state_dict(state.get('compressor', {}))


def reduce_scatter(blocks: Blocks, bucket: Bucket, codec: Codec, team: Engine) -> Sparse:
    """Spar-Reduce-Scatter (Algorithm 1): what is left of the team's sum of this worker's block.

    In each round a worker sends the worker ``gap`` ahead that one's block and those behind it, up
    to the next larger gap, and receives its own block with as many others; the gap halves. So the
    bags have … 4, 2, 1 blocks, and the first one whatever remains.
    """
    rank, size = team.rank, team.size
    for gap in reversed(list(doublings(size))):
        ahead, behind = (rank + gap) % size, (rank - gap) % size
        bag = [blocks.take((ahead + number) % size) for number in range(bag_of(gap, size))]
        wire = Wire(bucket, len(bag) * blocks.limit, codec)
        message, rounding = wire.write(join(bag, bucket.numel))
        blocks.add(rounding)
        blocks.add(wire.read(team.send_recv(message, ahead, behind), behind))
    return blocks.take(rank)


def bag_of(gap: int, size: int) -> int:
    """How many blocks travel in the round of this gap."""
    return min(2 * gap, size) - gap
