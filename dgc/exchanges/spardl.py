"""SparDL: sparse reduce-scatter, then all-gather (Zhao et al., ICDE 2024, arXiv 2304.00737)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.compressors.base import Compressor
from dgc.compressors.topk import TopK
from dgc.engines.base import Engine
from dgc.engines.group import Group, doublings
from dgc.exchanges.base import DENSE_ONLY, Context, Exchange, Exchanged
from dgc.exchanges.blocks import Blocks
from dgc.exchanges.residuals import GlobalResiduals, Residuals
from dgc.exchanges.team_gather import Bruck, RecursiveDoubling, TeamGather
from dgc.sparse import Payload, Sparse, join
from dgc.state import Entries, Values


class SparDL(Exchange):
    """Each block is summed by one owner, which keeps ``k/m`` elements of it.

    ``P`` ranks are ``d`` teams of ``m = P/d``. Spar-Reduce-Scatter sums within each team in
    ⌈log2 m⌉ rounds, for any ``m``; Spar-All-Gather sums the teams' blocks; Bruck's all-gather
    spreads the blocks within each team. More teams take fewer rounds and more bytes. Every block is
    cut to ``k/m`` elements before it is sent, so no message grows.

    Args:
        teams: ``d``, which must divide the number of ranks.
        gather: How the teams' blocks are summed; by default recursive doubling where ``d`` is a
            power of two, else Bruck's.
        compressor: Selects from a dense block; exact top-k by default.
        residuals: Which truncation errors return to the memories.

    Raises:
        ValueError: For a number of teams below 1, or that ``gather`` cannot serve, and for a
            compressor that does not select by density.
    """

    accepts = DENSE_ONLY
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
        check_selection(self.compressor)
        self.residuals = residuals or GlobalResiduals()
        self.loses = self.residuals.loses
        self.recodes = teams > 1

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the state of the compressor and of ``gather``."""
        return {'blocks': Values(), 'gather': Values()}

    def writes(self, payload: Payload) -> Payload | None:
        """Return SPARSE: blocks are sent as sparse messages."""
        return Payload.SPARSE

    def check(self, engine: Engine, device: torch.device | str = 'cpu') -> None:
        """Raise ValueError where the teams do not divide the ranks."""
        if engine.size % self.teams:
            raise ValueError(
                f'teams={self.teams} does not divide {engine.size} ranks: choose a divisor'
            )

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return at most ``⌈k/m⌉`` elements of each of the ``m`` blocks of the sum."""
        engine, bucket, numel = context.engine, context.bucket, selected.numel
        size = engine.size // self.teams
        number, place = divmod(engine.rank, size)
        team = Group(engine, range(number * size, (number + 1) * size))
        owners = Group(engine, range(place, engine.size, size))
        forget_other_teams(context.state['gather'], self.teams, size)
        flat, states = bucket.copy_to_total(selected.values), context.state['blocks']
        blocks = Blocks(flat, size, context.k, self.compressor, states)
        # Spar-Reduce-Scatter within the team (Algorithm 1).
        own = reduce_scatter(blocks, context.within(team))
        # Spar-All-Gather between the owners of the same block (section III-B).
        if self.teams > 1:
            own = self.gather.sum(own, blocks, context.within(owners))
        # All-gather within the team.
        wire = context.wire(blocks.limit)
        message, rounding = wire.write(own)
        blocks.add(rounding, holders=self.teams)
        gathered = team.all_gather(message)
        parts = wire.read_all(gathered)
        # Global residual collection (section III-C).
        return self.residuals.exchanged(selected.values, blocks, join(parts, numel))

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes of the reduce-scatter, the teams' gather and the team's all-gather.

        They are one message per round, those of ``gather``, and ``m-1`` messages of one block.
        """
        numel, size = spec.numel, world_size // self.teams
        limit = max(-(-k // size), 1)
        scattered = sum(
            codec.capacity(numel, min(bag_of(gap, size) * limit, numel)) for gap in doublings(size)
        )
        between = self.gather.bytes_sent(numel, limit, codec, self.teams)
        return scattered + between + (size - 1) * codec.capacity(numel, min(limit, numel))


def check_selection(compressor: Compressor) -> None:
    """Raise ValueError for a compressor that selects all elements, or so many of a block that its
    message would be longer than others expect."""
    spec = BucketSpec.of_shape(4096)
    is_fixed = compressor.budget(spec, 0.01) == compressor.budget(spec, 0.1)
    if is_fixed or compressor.payload is not Payload.SPARSE:
        raise ValueError(
            f'SparDL selects from blocks by their density, on which {type(compressor).__name__} '
            'does not depend: choose another compressor for it, such as SampledTopK'
        )


def forget_other_teams(state: MutableMapping[str, Any], teams: int, size: int) -> None:
    """Clear what ``gather`` keeps where it is of an earlier run with other teams: the owners of a
    block, which must have the same, were others then."""
    present = {'teams': teams, 'blocks': size}
    if any(state.get(name, number) != number for name, number in present.items()):
        state.clear()
    state.update(present)


def reduce_scatter(blocks: Blocks, context: Context) -> Sparse:
    """Spar-Reduce-Scatter (Algorithm 1): return the team's sum of this rank's block, cut.

    In the round of a gap, a rank sends a bag of blocks to the rank ``gap`` ahead: that rank's own
    block and those behind it, up to the next larger gap; and receives its own block with as many
    others. The gap halves, so bags have … 4, 2, 1 blocks, and the first one the remainder.
    """
    team, numel = context.engine, context.bucket.numel
    rank, size = team.rank, team.size
    for gap in reversed(list(doublings(size))):
        ahead, behind = (rank + gap) % size, (rank - gap) % size
        bag = [blocks.take((ahead + number) % size) for number in range(bag_of(gap, size))]
        wire = context.wire(len(bag) * blocks.limit)
        message, rounding = wire.write(join(bag, numel))
        blocks.add(rounding)
        blocks.add(wire.read(team.send_recv(message, ahead, behind), behind))
    return blocks.take(rank)


def bag_of(gap: int, size: int) -> int:
    """Return how many blocks are sent in the round of this gap."""
    return min(2 * gap, size) - gap
