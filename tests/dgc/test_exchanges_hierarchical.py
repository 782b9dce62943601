"""Where the gradient and the memory of a machine are, before and after its sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from dgc_helpers import bucket_of, loss, parameters, target, train, wrap
from exchange_helpers import total_of

import dgc
from dgc.codec import Codec
from dgc.compressors import Dense, TopK
from dgc.exchanges import AllGather, AllReduce, Exchange, GTopK, Hierarchical, OkTopK, SparDL
from dgc.memory import MomentumCorrection, Residual
from dgc.planner import Merged
from dgc.profile import Profile
from dgc.sparse import Sparse

NUMEL = 30
WORLDS = [(4, 2), (6, 3), (6, 2), (5, 5), (3, 1), (8, 4)]  # workers, of a machine


def drawn(rank: int, step: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(NUMEL, generator=draw)


def machine_sum(rank: int, local_size: int, step: int = 0) -> torch.Tensor:
    first = rank - rank % local_size
    return sum(drawn(other, step) for other in range(first, first + local_size))


@pytest.mark.parametrize(('workers', 'local_size'), WORLDS)
def test_the_first_of_a_machine_has_its_sum_and_the_others_nothing(workers, local_size):
    def worker(engine):
        bucket = bucket_of(drawn(engine.rank))
        healthy = Hierarchical(AllGather(), local_size).prepare(bucket, engine, healthy=True)
        return healthy, bucket.gradient

    for rank, (healthy, gradient) in enumerate(dgc.simulate(workers, worker)):
        assert healthy
        if rank % local_size:
            assert not gradient.any()
        else:
            torch.testing.assert_close(gradient, machine_sum(rank, local_size))


@pytest.mark.parametrize(('workers', 'local_size'), WORLDS)
def test_what_the_others_kept_moves_to_the_first_once(workers, local_size):
    """As after a run without this exchange: each has a momentum and a velocity."""

    def worker(engine):
        exchange, memory = Hierarchical(AllGather(), local_size), MomentumCorrection()
        bucket = bucket_of(torch.zeros(NUMEL), buffers=memory.buffers)
        seen = []
        for step in (1, 2):
            for offset, flat in enumerate(bucket.buffers.values()):
                flat.copy_(drawn(engine.rank, step + 10 * offset))
            exchange.prepare(bucket, engine, healthy=True)
            seen.append({name: flat.clone() for name, flat in bucket.buffers.items()})
        return seen

    for rank, (first, second) in enumerate(dgc.simulate(workers, worker)):
        for offset, name in enumerate(MomentumCorrection.buffers):
            moved = machine_sum(rank, local_size, 1 + 10 * offset)
            right = torch.zeros(NUMEL) if rank % local_size else moved
            torch.testing.assert_close(first[name], right)
            assert torch.equal(second[name], drawn(rank, 2 + 10 * offset))


def test_each_bucket_moves_its_own_and_does_so_again_after_a_state_was_loaded():
    def worker(engine):
        exchange = Hierarchical(AllGather(), 2)
        buckets = [bucket_of(torch.zeros(NUMEL), buffers=('residual',)) for _ in range(2)]
        buckets[1].members[0] = buckets[1].members[0]._replace(name='other')
        seen = []
        for bucket in (*buckets, buckets[0]):
            bucket.buffers['residual'].fill_(1.0)
            exchange.prepare(bucket, engine, healthy=True)
            seen.append(float(bucket.buffers['residual'][0]))
        exchange.load_state_dict(exchange.state_dict())
        exchange.prepare(buckets[0], engine, healthy=True)
        return [*seen, float(buckets[0].buffers['residual'][0])]

    assert dgc.simulate(2, worker) == [[2, 2, 1, 2], [0, 0, 1, 0]]


@pytest.mark.parametrize('bad', [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize('victim', range(6))
def test_a_gradient_that_is_not_finite_makes_its_machines_first_unhealthy(victim, bad):
    """And only that one: the victim has nothing to send any more."""

    def worker(engine):
        bucket = bucket_of(drawn(engine.rank))
        if engine.rank == victim:
            bucket.gradient[7] = bad
        ours = engine.rank != victim
        healthy = Hierarchical(AllGather(), 3).prepare(bucket, engine, healthy=ours)
        return healthy, bool(bucket.gradient.isfinite().all())

    for rank, (healthy, finite) in enumerate(dgc.simulate(6, worker)):
        assert healthy == finite == (rank != victim - victim % 3)


def test_infinities_of_both_signs_do_not_cancel():
    def worker(engine):
        bucket = bucket_of(torch.full((NUMEL,), torch.inf if engine.rank else -torch.inf))
        return Hierarchical(AllGather(), 2).prepare(bucket, engine, healthy=False)

    assert dgc.simulate(2, worker) == [False, True]


def run(make: Callable[[], Exchange], steps: int, dense_steps: int, engine: dgc.Engine):
    """So many steps, the first of them dense, without masking: the sums, and what is kept."""
    exchange, memory, codec = make(), MomentumCorrection(momentum_masking=False), Codec()
    bucket = bucket_of(torch.zeros(NUMEL), memory.buffers, momentum=0.9)
    totals = torch.zeros(NUMEL, dtype=torch.float64)
    for step in range(steps):
        bucket.gradient.copy_(drawn(engine.rank, step))
        assert exchange.prepare(bucket, engine, healthy=True)
        if step < dense_steps:
            bucket.ratio = 1.0
            message = memory.select(bucket, Dense())
            exchanged = AllReduce().sum(bucket, message, codec, engine)
        else:
            bucket.ratio = 0.1
            message = memory.select(bucket, Dense() if exchange.selects else TopK())
            exchanged = exchange.sum(bucket, message, codec, engine)
        memory.settle(bucket, message, exchanged)
        totals += total_of(exchanged.parts).double()
    return totals, {name: flat.double() for name, flat in bucket.buffers.items()}


@pytest.mark.parametrize('dense_steps', [0, 3])
@pytest.mark.parametrize('inner', [AllGather, GTopK, OkTopK, SparDL])
@pytest.mark.parametrize(('workers', 'local_size'), [(4, 2), (6, 3), (3, 1), (2, 2)])
def test_no_momentum_is_lost_from_the_dense_phase_to_the_sparse(
    workers, local_size, inner, dense_steps
):
    """Without masking all is linear: sums and what is kept are the velocities of all workers."""
    make = lambda: Hierarchical(inner(), local_size)  # noqa: E731
    results = dgc.simulate(workers, partial(run, make, 8, dense_steps))
    u = given = torch.zeros(NUMEL, dtype=torch.float64)
    for step in range(8):
        u = 0.9 * u + sum(drawn(rank, step) for rank in range(workers)).double()
        given = given + u
    kept = sum(buffers['velocity'] for _, buffers in results)
    torch.testing.assert_close(results[0][0] + kept, given, rtol=1e-5, atol=1e-4)
    momentum = sum(buffers['momentum'] for _, buffers in results)
    torch.testing.assert_close(momentum, u, rtol=1e-5, atol=1e-4)
    for rank, (totals, buffers) in enumerate(results):
        assert torch.equal(totals, results[0][0])
        if rank % local_size:
            assert not any(flat.any() for flat in buffers.values())


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def test_a_run_without_machines_goes_on_with_them_and_loses_nothing():
    """Its state is loaded; one step later all that is kept is with the first of each machine."""

    def worker(engine):
        def fresh(exchange):
            named = parameters()
            composition = dgc.deep_gradient_compression(
                0.05, memory=Residual(), compressor=TopK(), exchange=exchange
            )
            return named, wrap(named, composition, engine)

        def kept(optimizer):
            memory = optimizer.reducer.state_dict()['memory']
            return flat(memory[name]['residual'] for name, _ in named)

        named, before = fresh(AllGather())
        train(before, named, 3, engine.rank)
        named, after = fresh(Hierarchical(GTopK(), 2))
        after.load_state_dict(before.state_dict())
        had = kept(after)
        wanted = [p.detach() - target(p, engine.rank, 3, i) for i, (_, p) in enumerate(named)]
        loss(named, engine.rank, 3).backward()
        after.synchronize()
        return had + flat(wanted), flat(p.grad for _, p in named), kept(after)

    given, means, kept = zip(*dgc.simulate(4, worker), strict=True)
    torch.testing.assert_close(4 * means[0] + sum(kept), sum(given), rtol=1e-5, atol=1e-5)
    assert [bool(rest.any()) for rest in kept] == [True, False, True, False]


@pytest.mark.parametrize('local_size', [2, 3])
def test_all_are_told_the_sum_as_one_dense_part_in_the_bucket(local_size):
    def worker(engine):
        bucket = bucket_of(torch.zeros(NUMEL), ratio=0.1)
        first = engine.rank % local_size == 0
        message = Sparse(
            torch.ones(int(first)), torch.tensor([4] if first else [], dtype=torch.int64), NUMEL
        )
        exchange = Hierarchical(AllGather(), local_size)
        [part] = exchange.sum(bucket, message, Codec(), engine).parts
        assert part.values is bucket.total
        return part.is_dense, part.values.nonzero().tolist(), float(part.values[4])

    assert dgc.simulate(6, worker) == [(True, [[4]], 6 // local_size)] * 6


def test_bytes_between_machines_and_inside_one():
    inner, codec = GTopK(), Codec()
    for local_size, machines in ((4, 2), (None, 8)):
        reckoned = Hierarchical(inner, local_size).bytes_sent(1000, 10, codec, workers=8)
        assert reckoned == inner.bytes_sent(1000, 10, codec, machines)
    inside = [Hierarchical(inner, size).bytes_inside(10) for size in (1, 2, 3, 4, 5)]
    assert inside == [0, 40, 80, 80, 120]


@pytest.mark.parametrize(('machines', 'local_size'), [(2, 1), (2, 2), (3, 3), (2, 4), (1, 5)])
def test_the_first_of_a_machine_sends_what_is_reckoned_with(machines, local_size):
    exchange = Hierarchical(AllGather(), local_size)

    def worker(engine):
        bucket = bucket_of(torch.zeros(NUMEL), ratio=0.1)
        message = Sparse(torch.ones(3), torch.tensor([4, 5, 6]), NUMEL)
        exchange.sum(bucket, message, Codec(), engine)
        return engine.traffic.sent

    workers = machines * local_size
    between = exchange.bytes_sent(NUMEL, 3, Codec(), workers)
    sent = dgc.simulate(workers, worker)
    assert sent[0] == max(sent) == between + exchange.bytes_inside(NUMEL)


def test_the_engine_says_how_many_a_machine_has():
    """One machine of all of them: nothing is left for another exchange to do."""

    def worker(engine):
        engine.local_rank, engine.local_size = engine.rank, engine.size
        exchange = Hierarchical(AllGather())
        exchange.check(engine)
        bucket = bucket_of(drawn(engine.rank))
        exchange.prepare(bucket, engine, healthy=True)
        return bool(bucket.gradient.any())

    assert dgc.simulate(3, worker) == [True, False, False]
    exchange = Hierarchical(AllGather())
    exchange.check(
        SimpleNamespace(
            rank=1,
            size=2,
            local_rank=1,
            local_size=2,
            all_gather=lambda tensor: tensor.expand(2, 1),
        )
    )
    assert exchange.bytes_inside(NUMEL) == 4 * NUMEL


def test_a_planner_by_times_knows_how_many_workers_a_machine_has():
    """A gather among two machines pays where one among all eight workers does not."""
    costs = []

    def worker(engine):
        engine.local_size, engine.local_rank = 4, engine.rank % 4
        named = parameters({'w': (300, 100)})
        exchange = Hierarchical(AllGather())
        composition = dgc.deep_gradient_compression(0.1, exchange=exchange, planner=Merged())
        arrivals = {'w': 1e-3}
        optimizer = wrap(named, composition, engine, profile=lambda: Profile(1e-4, 1e-3, arrivals))
        costs.append(optimizer.plan.timing.costs)

    dgc.simulate(8, worker)
    assert all(each.sparse is not None for each in costs)
