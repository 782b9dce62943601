"""What an exchange refuses, before the first message, by the name and value of the setting."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from dgc_helpers import bucket_of

import dgc
from dgc.codec import Codec, CodecError
from dgc.exchanges import (
    AllGather,
    Bruck,
    ChunkAllReduce,
    GTopK,
    Hierarchical,
    OkTopK,
    RecursiveDoubling,
    SparDL,
)
from dgc.sparse import Sparse


def place(rank=0, size=4, local_rank=0, local_size=1):
    """An engine, as far as a check looks."""
    return SimpleNamespace(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        all_gather=lambda tensor: tensor.expand(size, -1),
    )


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: SparDL(teams=0), 'teams must be at least 1, got 0'),
        (lambda: SparDL(teams=-2), 'teams must be at least 1, got -2'),
        (lambda: SparDL(3, RecursiveDoubling()), 'power of two of teams, got 3: use Bruck'),
        (lambda: SparDL(6, RecursiveDoubling()), 'power of two of teams, got 6: use Bruck'),
        (lambda: ChunkAllReduce(chunk=0), 'chunk must be at least 1 element, got 0'),
        (lambda: OkTopK(threshold_period=0), 'at least 1, got 0 and 64'),
        (lambda: OkTopK(region_period=-1), 'at least 1, got 32 and -1'),
        (lambda: Hierarchical(AllGather(), local_size=0), 'local_size must be at least 1, got 0'),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ('exchange', 'engine', 'message'),
    [
        (SparDL(2), place(size=5), 'teams=2 does not divide 5 workers'),
        (SparDL(4), place(size=2), 'teams=4 does not divide 2 workers'),
        (Hierarchical(GTopK(), 3), place(size=4), 'local_size=3 does not divide 4 workers'),
        (Hierarchical(GTopK()), place(size=5, local_size=2), 'local_size=2 does not divide 5'),
        # Two machines of two, to which the ranks were dealt out in turns.
        (
            Hierarchical(GTopK()),
            place(rank=2, local_rank=1, local_size=2),
            'rank 2 is number 1 of the 2 on its machine',
        ),
        # Three machines of two: the exchange between them is asked too.
        (Hierarchical(SparDL(2), 2), place(size=6), 'teams=2 does not divide 3 workers'),
    ],
)
def test_workers_that_cannot_be_served(exchange, engine, message):
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
        # It is said how many a machine has, so what the engine takes for one does not matter.
        (Hierarchical(GTopK(), 2), place(rank=3, local_rank=3, local_size=4)),
        (Hierarchical(SparDL(2), 2), place(rank=5, size=8)),
    ],
)
def test_workers_that_can(exchange, engine):
    exchange.check(engine)


@pytest.mark.parametrize('exchange', [AllGather(), GTopK(), OkTopK()])
def test_a_message_of_another_bucket_is_told_by_its_length(exchange):
    """Two workers whose models differ."""

    def worker(engine):
        numel = 10 + engine.rank
        message = Sparse(torch.ones(1), torch.tensor([4]), numel)
        return exchange.sum(bucket_of(torch.zeros(numel), ratio=0.05), message, Codec(), engine)

    with pytest.raises(CodecError, match=r'rank \d sent 1[01] elements as its part of weight'):
        dgc.simulate(2, worker)


def test_machines_of_different_sizes_are_refused_by_all():
    """Four workers on machines of 2, 1 and 1: each rank by itself sees nothing wrong."""

    def worker(engine):
        engine.local_rank, engine.local_size = [(0, 2), (1, 2), (0, 1), (0, 1)][engine.rank]
        with pytest.raises(ValueError, match=r'machines have \[1, 2\] workers: start as many'):
            Hierarchical(GTopK()).check(engine)
        return True

    assert all(dgc.simulate(4, worker))
