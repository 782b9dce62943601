"""A NaN at element 0, the message of a non-finite rank, reaches all ranks beside any other data."""

from __future__ import annotations

import pytest
import torch
from exchange_helpers import EXCHANGES, bucket_for, largest, total_of, worlds

import dgc
from dgc.codec import Codec
from dgc.exchanges import Context
from dgc.nonfinite import non_finite_message
from dgc.sparse import Payload, Sparse, gather

# n and k; both also below the world size.
SIZES = [(40, 12), (40, 1), (3, 2)]


def reduce_as_the_reducer(exchange, bucket, engine, is_finite, k, codec=None):
    """The exchange's result; a rank that is non-finite after ``prepare`` sends a NaN instead."""
    numel, codec = bucket.numel, codec or Codec()
    payload = Payload.DENSE if exchange.selects else Payload.SPARSE
    is_finite = exchange.prepare(bucket, engine, is_finite)
    if not is_finite:
        selected = non_finite_message(bucket, payload)
    elif payload is Payload.DENSE:
        selected = Sparse(bucket.gradient.clone(), None, numel)
    else:
        chosen = largest(bucket.gradient, k)
        selected = gather(chosen, chosen.nonzero().view(-1))
    return exchange.reduce(selected, Context(bucket, k, codec, engine, is_finite))


def is_reported(exchange, engine, victim, numel, k, codec=None) -> bool:
    """Whether a rank sees that the gradient of ``victim`` is not finite.

    Both in the flag and as a NaN at element 0 of the sum.
    """
    draw = torch.Generator().manual_seed(engine.rank)
    bucket = bucket_for(exchange, torch.randn(numel, generator=draw), engine, (k - 0.5) / numel)
    if engine.rank == victim:
        bucket.gradient[numel // 2] = torch.inf
    exchanged = reduce_as_the_reducer(exchange, bucket, engine, engine.rank != victim, k, codec)
    total = total_of(exchanged.contributions)
    if victim is None:
        assert total.isfinite().all()
    else:
        assert total[0].isnan()
    return exchanged.non_finite


@pytest.mark.parametrize(
    ('row', 'world_size', 'types'),
    [(row, world_size, ('fp32', 'int64')) for row, world_size in worlds((1, 4, 5, 6))]
    + [(row, world_size, ('int8', 'packed')) for row, world_size in worlds((2, 3))],
)
def test_all_ranks_report_it_from_any_rank(row, world_size, types):
    """At each size of a bucket every second rank, in turns."""
    make = EXCHANGES[row][0]

    def worker(engine):
        return [
            is_reported(make(), engine, victim, numel, k, Codec(*types))
            for number, (numel, k) in enumerate(SIZES)
            for victim in range(world_size)[(number + world_size) % 2 :: 2] or [0]
        ]

    for seen in dgc.simulate(world_size, worker):
        assert all(seen)


@pytest.mark.parametrize(('row', 'world_size'), worlds((16,)))
def test_all_ranks_report_it_where_each_may_send_a_single_element(row, world_size):
    def worker(engine):
        return [is_reported(EXCHANGES[row][0](), engine, victim, 60, 1) for victim in (0, 7, 15)]

    for seen in dgc.simulate(world_size, worker):
        assert all(seen)


@pytest.mark.parametrize(('row', 'world_size'), worlds((1, 4)))
def test_finite_gradients_are_never_reported(row, world_size):
    def worker(engine):
        return [is_reported(EXCHANGES[row][0](), engine, None, numel, k) for numel, k in SIZES]

    for seen in dgc.simulate(world_size, worker):
        assert not any(seen)


@pytest.mark.parametrize('row', ['hierarchical', 'hierarchical spardl', 'hierarchical oktopk'])
def test_all_ranks_report_a_machines_sum_that_overflows(row):
    def worker(engine):
        exchange = EXCHANGES[row][0]()
        bucket = bucket_for(exchange, torch.full((40,), 3e38), engine, density=0.2)
        prepare, seen = exchange.prepare, []
        exchange.prepare = lambda *args: seen.append(prepare(*args)) or seen[0]
        exchanged = reduce_as_the_reducer(exchange, bucket, engine, True, 8)
        assert seen == [engine.rank % 2 == 1]
        assert total_of(exchanged.contributions)[0].isnan()
        return exchanged.non_finite

    assert dgc.simulate(4, worker) == [True] * 4
