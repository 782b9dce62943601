"""A NaN at element 0, by which a worker stops the others, arrives whatever else is sent."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import bucket_of
from exchange_helpers import EXCHANGES, largest, total_of, worlds

import dgc
from dgc.codec import Codec
from dgc.nonfinite import poison
from dgc.sparse import Sparse, gather

# n and k, for many and for few workers: k is below their number, and n too.
SIZES = [(40, 12), (40, 1), (3, 2)]


def total_with(exchange, engine, victim, numel, k, codec) -> torch.Tensor:
    """What a worker has in the end, where the gradient of the victim is not finite.

    As in the reducer: who has such a gradient after ``prepare`` sends poison instead.
    """
    draw = torch.Generator().manual_seed(engine.rank)
    bucket = bucket_of(torch.randn(numel, generator=draw), ratio=(k - 0.5) / numel)
    if engine.rank == victim:
        bucket.gradient[numel // 2] = torch.inf
    if not exchange.prepare(bucket, engine, healthy=engine.rank != victim):
        message = poison(bucket, dense=exchange.selects)
    elif exchange.selects:
        message = Sparse(bucket.gradient.clone(), None, numel)
    else:
        chosen = largest(bucket.gradient, k)
        message = gather(chosen, chosen.nonzero().view(-1))
    return total_of(exchange.sum(bucket, message, codec, engine).parts)


@pytest.mark.parametrize(
    ('row', 'workers', 'types'),
    [(row, workers, ('fp32', 'int64')) for row, workers in worlds((1, 4, 5, 6))]
    + [(row, workers, ('int8', 'packed')) for row, workers in worlds((2, 3))],
)
def test_whoever_sends_it_all_workers_see_it(row, workers, types):
    make = EXCHANGES[row][0]

    def worker(engine):
        return [
            bool(total_with(make(), engine, victim, numel, k, Codec(*types))[0].isnan())
            for numel, k in SIZES
            for victim in range(workers)
        ]

    for seen in dgc.simulate(workers, worker):
        assert all(seen)


@pytest.mark.parametrize(('row', 'workers'), worlds((16,)))
def test_it_arrives_where_each_worker_may_send_a_single_element(row, workers):
    def worker(engine):
        return [
            bool(total_with(EXCHANGES[row][0](), engine, victim, 60, 1, Codec())[0].isnan())
            for victim in (0, 7, 15)
        ]

    for seen in dgc.simulate(workers, worker):
        assert all(seen)


@pytest.mark.parametrize(('row', 'workers'), worlds((1, 4)))
def test_no_gradient_that_is_finite_arrives_as_a_nan(row, workers):
    def worker(engine):
        return [
            bool(total_with(EXCHANGES[row][0](), engine, None, numel, k, Codec()).isfinite().all())
            for numel, k in SIZES
        ]

    for finite in dgc.simulate(workers, worker):
        assert all(finite)


@pytest.mark.parametrize('row', ['hierarchical', 'hierarchical spardl', 'hierarchical oktopk'])
def test_what_is_finite_on_each_worker_of_a_machine_but_not_in_its_sum_stops_all(row):
    def worker(engine):
        exchange = EXCHANGES[row][0]()
        bucket = bucket_of(torch.full((40,), 3e38), ratio=0.2)
        healthy = exchange.prepare(bucket, engine, healthy=True)
        assert healthy == (engine.rank % 2 == 1)
        message = poison(bucket, dense=exchange.selects)
        if healthy:
            few = gather(bucket.gradient, torch.arange(8))
            message = Sparse(bucket.gradient.clone(), None, 40) if exchange.selects else few
        return total_of(exchange.sum(bucket, message, Codec(), engine).parts)

    for total in dgc.simulate(4, worker):
        assert total[0].isnan()
