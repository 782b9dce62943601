"""Settings, ranks and messages that an exchange refuses; errors name the setting and its value."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from exchange_helpers import bucket_for

import dgc
from dgc.codec import Codec, CodecError
from dgc.compressors import BlockTopK, Dense
from dgc.exchanges import (
    AllGather,
    Bruck,
    ChunkAllReduce,
    CompressedAllReduce,
    Context,
    GTopK,
    Hierarchical,
    MajorityVote,
    OkTopK,
    PowerSGD,
    RecursiveDoubling,
    Scale,
    SparDL,
)
from dgc.sparse import Sparse
from dgc.transforms import ChunkLayout


def place(rank=0, size=4, local_rank=0, local_size=1):
    """The attributes of an engine that ``check`` uses; every other rank is placed alike."""
    is_consecutive = rank % local_size == local_rank
    machines = size // local_size
    numbers = [r % local_size if is_consecutive else r // machines for r in range(size)]
    table = torch.tensor([[number, local_size] for number in numbers])
    return SimpleNamespace(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        all_gather=lambda tensor: table,
    )


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: SparDL(teams=0), 'teams must be at least 1, got 0'),
        (lambda: SparDL(teams=-2), 'teams must be at least 1, got -2'),
        (lambda: SparDL(3, RecursiveDoubling()), 'power of two of teams, got 3: use Bruck'),
        (lambda: SparDL(6, RecursiveDoubling()), 'power of two of teams, got 6: use Bruck'),
        (lambda: SparDL(compressor=Dense()), 'density, on which Dense does not depend'),
        (lambda: SparDL(compressor=BlockTopK(64, ChunkLayout())), 'which BlockTopK does not'),
        (lambda: ChunkAllReduce(chunk=0), 'chunk must be at least 1 element, got 0'),
        (lambda: OkTopK(threshold_period=0), 'at least 1, got 0 and 64'),
        (lambda: OkTopK(region_period=-1), 'at least 1, got 32 and -1'),
        (lambda: Hierarchical(AllGather(), local_size=0), 'local_size must be at least 1, got 0'),
        (lambda: PowerSGD(rank=0), 'the rank of PowerSGD must be at least 1, got 0'),
        (lambda: Hierarchical(MajorityVote()), 'MajorityVote gives no sum'),
        (lambda: Hierarchical(CompressedAllReduce()), 'CompressedAllReduce gives no sum'),
        (lambda: Hierarchical(AllGather(Scale.CONTRIBUTORS)), 'AllGather gives no sum'),
    ],
)
def test_invalid_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ('exchange', 'engine', 'message'),
    [
        (SparDL(2), place(size=5), 'teams=2 does not divide 5 ranks'),
        (SparDL(4), place(size=2), 'teams=4 does not divide 2 ranks'),
        (Hierarchical(GTopK(), 3), place(size=4), 'local_size=3 does not divide 4 ranks'),
        (Hierarchical(GTopK()), place(size=5, local_size=2), 'local_size=2 does not divide 5'),
        # Two machines of two whose ranks alternate.
        (
            Hierarchical(GTopK()),
            place(rank=2, local_rank=1, local_size=2),
            'rank 1 is number 0 of the 2 on its machine',
        ),
        # Three machines of two: the exchange between them is checked too.
        (Hierarchical(SparDL(2), 2), place(size=6), 'teams=2 does not divide 3 ranks'),
    ],
)
def test_world_sizes_that_cannot_be_served(exchange, engine, message):
    with pytest.raises(ValueError, match=message):
        exchange.check(engine)


@pytest.mark.parametrize(
    ('exchange', 'engine'),
    [
        (AllGather(), place(size=7)),
        (GTopK(), place(size=7)),
        (OkTopK(), place(size=7)),
        (ChunkAllReduce(), place(size=7)),
        (SparDL(), place(size=7)),
        (SparDL(3), place(size=6)),
        (SparDL(3, Bruck()), place(size=3)),
        (SparDL(4, RecursiveDoubling()), place(size=8)),
        (Hierarchical(GTopK()), place(rank=3, local_rank=1, local_size=2)),
        # local_size is given, so the machines that the engine sees do not matter.
        (Hierarchical(GTopK(), 2), place(rank=3, local_rank=3, local_size=4)),
        (Hierarchical(SparDL(2), 2), place(rank=5, size=8)),
    ],
)
def test_world_sizes_that_can_be_served(exchange, engine):
    exchange.check(engine)


@pytest.mark.parametrize('exchange', [AllGather(), GTopK(), OkTopK()])
def test_a_message_of_another_bucket_is_refused_by_its_length(exchange):
    """Two ranks whose models differ."""

    def worker(engine):
        numel = 10 + engine.rank
        message = Sparse(torch.ones(1), torch.tensor([4]), numel)
        bucket = bucket_for(exchange, torch.zeros(numel), engine, density=0.05)
        return exchange.reduce(message, Context(bucket, 1, Codec(), engine))

    with pytest.raises(
        CodecError, match=r'rank \d sent 1[01] elements for weight, which has 1[01]'
    ):
        dgc.simulate(2, worker)


def test_machines_of_different_sizes_are_refused_by_all():
    """Four ranks on machines of 2, 1 and 1: each rank by itself sees nothing wrong."""

    def worker(engine):
        engine.local_rank, engine.local_size = [(0, 2), (1, 2), (0, 1), (0, 1)][engine.rank]
        with pytest.raises(ValueError, match=r'machines have \[1, 2\] ranks: start as many'):
            Hierarchical(GTopK()).check(engine)
        return True

    assert all(dgc.simulate(4, worker))
