"""The gradient and the memory of a machine, before and after its sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from dgc_helpers import bucket_of, loss, parameters, target, train, wrap
from exchange_helpers import bucket_for, total_of

import dgc
from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.compressors import Dense, TopK
from dgc.exchanges import (
    AllGather,
    AllReduce,
    Context,
    Exchange,
    GTopK,
    Hierarchical,
    OkTopK,
    PowerSGD,
    RandomK,
    SparDL,
)
from dgc.memory import MeanMomentum, MomentumCorrection, Residual
from dgc.nonfinite import non_finite_message
from dgc.planner import Merged
from dgc.profile import Profile
from dgc.sparse import Payload, Sparse

NUMEL = 30
WORLDS = [(4, 2), (6, 3), (6, 2), (5, 5), (3, 1), (8, 4)]  # world size, ranks of a machine


def drawn(rank: int, step: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(NUMEL, generator=draw)


def machine_sum(rank: int, local_size: int, step: int = 0) -> torch.Tensor:
    first = rank - rank % local_size
    return sum(drawn(other, step) for other in range(first, first + local_size))


@pytest.mark.parametrize(('world_size', 'local_size'), WORLDS)
def test_the_first_rank_of_a_machine_gets_its_sum_and_the_others_zeros(world_size, local_size):
    def worker(engine):
        exchange = Hierarchical(AllGather(), local_size)
        bucket = bucket_for(exchange, drawn(engine.rank), engine)
        is_finite = exchange.prepare(bucket, engine, is_finite=True)
        return is_finite, bucket.gradient

    for rank, (is_finite, gradient) in enumerate(dgc.simulate(world_size, worker)):
        assert is_finite
        if rank % local_size:
            assert not gradient.any()
        else:
            torch.testing.assert_close(gradient, machine_sum(rank, local_size))


@pytest.mark.parametrize(('world_size', 'local_size'), WORLDS)
def test_memories_of_the_other_ranks_move_to_the_first_once(world_size, local_size):
    """As after a run without this exchange: each has a momentum and a velocity."""

    def worker(engine):
        exchange, memory = Hierarchical(AllGather(), local_size), MomentumCorrection()
        bucket = bucket_for(exchange, torch.zeros(NUMEL), engine, buffers=memory.buffers)
        seen = []
        for step in (1, 2):
            for offset, flat in enumerate(bucket.buffers.values()):
                flat.copy_(drawn(engine.rank, step + 10 * offset))
            exchange.prepare(bucket, engine, is_finite=True)
            seen.append({name: flat.clone() for name, flat in bucket.buffers.items()})
        return seen

    for rank, (first, second) in enumerate(dgc.simulate(world_size, worker)):
        for offset, name in enumerate(MomentumCorrection.buffers):
            moved = machine_sum(rank, local_size, 1 + 10 * offset)
            expected = torch.zeros(NUMEL) if rank % local_size else moved
            torch.testing.assert_close(first[name], expected)
            assert torch.equal(second[name], drawn(rank, 2 + 10 * offset))


@pytest.mark.parametrize(
    ('saved', 'afterwards'),
    # With its own state the move is over; a run that had no machines saved no such value.
    [(True, [1, 1]), (False, [2, 0])],
    ids=['own state', 'state of another exchange'],
)
def test_each_bucket_moves_its_own_memory_and_again_if_the_loaded_state_has_not(saved, afterwards):
    def worker(engine):
        exchange = Hierarchical(AllGather(), 2)
        zeros = torch.zeros(NUMEL)
        buckets = [bucket_for(exchange, zeros, engine, buffers=('residual',)) for _ in range(2)]
        seen = []
        for bucket in (*buckets, buckets[0]):
            bucket.buffers['residual'].fill_(1.0)
            exchange.prepare(bucket, engine, is_finite=True)
            seen.append(float(bucket.buffers['residual'][0]))
        state = buckets[0].state.state_dict()
        buckets[0].state.load_state_dict(state, state['values'] if saved else {})
        exchange.prepare(buckets[0], engine, is_finite=True)
        return [*seen, float(buckets[0].buffers['residual'][0])]

    assert dgc.simulate(2, worker) == [[2, 2, 1, afterwards[0]], [0, 0, 1, afterwards[1]]]


@pytest.mark.parametrize('bad', [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize('victim', range(6))
def test_a_non_finite_gradient_is_reported_by_the_first_rank_of_its_machine(victim, bad):
    """And by no other rank: the gradient of the victim is zero afterwards."""

    def worker(engine):
        exchange = Hierarchical(AllGather(), 3)
        bucket = bucket_for(exchange, drawn(engine.rank), engine)
        if engine.rank == victim:
            bucket.gradient[7] = bad
        ours = engine.rank != victim
        is_finite = exchange.prepare(bucket, engine, is_finite=ours)
        return is_finite, bool(bucket.gradient.isfinite().all())

    for rank, (is_finite, finite) in enumerate(dgc.simulate(6, worker)):
        assert is_finite == finite == (rank != victim - victim % 3)


def test_infinities_of_both_signs_do_not_cancel():
    def worker(engine):
        exchange = Hierarchical(AllGather(), 2)
        gradient = torch.full((NUMEL,), torch.inf if engine.rank else -torch.inf)
        bucket = bucket_for(exchange, gradient, engine)
        return exchange.prepare(bucket, engine, is_finite=False)

    assert dgc.simulate(2, worker) == [False, True]


def run(
    make: Callable[[], Exchange],
    kind: type[MomentumCorrection],
    steps: int,
    dense_steps: int,
    engine: dgc.Engine,
):
    """Steps of which the first are uncompressed, without masking: the sums, and the memory."""
    exchange, memory, codec = make(), kind(momentum_masking=False), Codec()
    bucket = bucket_for(exchange, torch.zeros(NUMEL), engine, None, memory.buffers, momentum=0.9)
    totals = torch.zeros(NUMEL, dtype=torch.float64)
    for step in range(steps):
        bucket.gradient.copy_(drawn(engine.rank, step))
        bucket.density = None if step < dense_steps else 0.1
        assert exchange.prepare(bucket, engine, is_finite=True)
        if step < dense_steps:
            selected = memory.select(bucket, Dense())
            exchanged = AllReduce().reduce(selected, Context(bucket, NUMEL, codec, engine))
        else:
            selected = memory.select(bucket, Dense() if exchange.selects else TopK())
            exchanged = exchange.reduce(selected, Context(bucket, 3, codec, engine))
        total = total_of(exchanged.contributions)
        totals += total.double()
        memory.update(bucket, selected, exchanged, [total / engine.size])
    return totals, {name: flat.double() for name, flat in bucket.buffers.items()}


@pytest.mark.parametrize('dense_steps', [0, 3])
@pytest.mark.parametrize(
    ('inner', 'kind'),
    [
        *((inner, MomentumCorrection) for inner in (AllGather, GTopK, OkTopK, SparDL)),
        (AllGather, MeanMomentum),
    ],
)
@pytest.mark.parametrize(('world_size', 'local_size'), [(4, 2), (6, 3), (3, 1), (2, 2)])
def test_no_momentum_is_lost_from_the_dense_phase_to_the_sparse(
    world_size, local_size, inner, kind, dense_steps
):
    """Without masking all is linear: sums and residuals add up to all ranks' velocities."""
    make = lambda: Hierarchical(inner(), local_size)  # noqa: E731
    results = dgc.simulate(world_size, partial(run, make, kind, 8, dense_steps))
    u = given = torch.zeros(NUMEL, dtype=torch.float64)
    for step in range(8):
        u = 0.9 * u + sum(drawn(rank, step) for rank in range(world_size)).double()
        given = given + u
    residual = sum(buffers['velocity'] for _, buffers in results)
    torch.testing.assert_close(results[0][0] + residual, given, rtol=1e-5, atol=1e-4)
    momentum = sum(buffers['momentum'] for _, buffers in results)
    torch.testing.assert_close(momentum, u, rtol=1e-5, atol=1e-4)
    for rank, (totals, buffers) in enumerate(results):
        assert torch.equal(totals, results[0][0])
        if rank % local_size:
            assert not any(flat.any() for flat in buffers.values())


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.double().flatten() for tensor in tensors])


@pytest.mark.parametrize('local_size', [2, 4])
@pytest.mark.parametrize(
    'earlier',
    [AllGather(), *(Hierarchical(GTopK(), size) for size in (1, 2, 4))],
    ids=['without machines', 'machines of 1', 'machines of 2', 'machines of 4'],
)
def test_a_run_without_machines_or_with_others_resumes_and_loses_nothing(earlier, local_size):
    """One step after its state was loaded, all residuals are with the first ranks of machines."""

    def worker(engine):
        def fresh(exchange):
            named = parameters()
            composition = dgc.deep_gradient_compression(
                0.05, memory=Residual(), compressor=TopK(), exchange=exchange
            )
            return named, wrap(named, composition, engine)

        def residual_of(optimizer):
            memory = optimizer.reducer.state_dict()['memory']
            return flat(memory[name]['residual'] for name, _ in named)

        named, before = fresh(earlier)
        train(before, named, 3, engine.rank)
        named, after = fresh(Hierarchical(GTopK(), local_size))
        after.load_state_dict(before.state_dict())
        had = residual_of(after)
        wanted = [p.detach() - target(p, engine.rank, 3, i) for i, (_, p) in enumerate(named)]
        loss(named, engine.rank, 3).backward()
        after.synchronize()
        return had + flat(wanted), flat(p.grad for _, p in named), residual_of(after)

    given, means, residuals = zip(*dgc.simulate(4, worker), strict=True)
    torch.testing.assert_close(4 * means[0] + sum(residuals), sum(given), rtol=1e-5, atol=1e-5)
    assert [bool(rest.any()) for rest in residuals] == [r % local_size == 0 for r in range(4)]


@pytest.mark.parametrize('local_size', [2, 3])
def test_all_ranks_get_the_sum_as_one_dense_contribution_in_the_buckets_total(local_size):
    def worker(engine):
        bucket = bucket_of(torch.zeros(NUMEL), density=0.1)
        first = engine.rank % local_size == 0
        message = Sparse(
            torch.ones(int(first)), torch.tensor([4] if first else [], dtype=torch.int64), NUMEL
        )
        exchange = Hierarchical(AllGather(), local_size)
        [part] = exchange.reduce(message, Context(bucket, 3, Codec(), engine)).contributions
        assert part.values is bucket.total
        return part.is_dense, part.values.nonzero().tolist(), float(part.values[4])

    assert dgc.simulate(6, worker) == [(True, [[4]], 6 // local_size)] * 6


def test_bytes_between_machines_and_inside_one():
    inner, codec, spec = GTopK(), Codec(), BucketSpec.of_shape(1000)
    for local_size, machines in ((4, 2), (None, 8)):
        closed = Hierarchical(inner, local_size).bytes_sent(spec, 10, codec, world_size=8)
        assert closed == inner.bytes_sent(spec, 10, codec, machines)
    inside = [Hierarchical(inner, size).bytes_inside(10) for size in (1, 2, 3, 4, 5)]
    assert inside == [0, 40, 80, 80, 120]


@pytest.mark.parametrize(('machines', 'local_size'), [(2, 1), (2, 2), (3, 3), (2, 4), (1, 5)])
def test_the_first_rank_of_a_machine_sends_the_bytes_of_the_closed_form(machines, local_size):
    exchange = Hierarchical(AllGather(), local_size)

    def worker(engine):
        bucket = bucket_of(torch.zeros(NUMEL), density=0.1)
        message = Sparse(torch.ones(3), torch.tensor([4, 5, 6]), NUMEL)
        exchange.reduce(message, Context(bucket, 3, Codec(), engine))
        return engine.traffic.sent

    world_size = machines * local_size
    between = exchange.bytes_sent(BucketSpec.of_shape(NUMEL), 3, Codec(), world_size)
    sent = dgc.simulate(world_size, worker)
    assert sent[0] == max(sent) == between + exchange.bytes_inside(NUMEL)


def test_the_number_of_ranks_of_a_machine_comes_from_the_engine():
    """One machine of all ranks: the exchange between machines has one rank."""

    def worker(engine):
        engine.local_rank, engine.local_size = engine.rank, engine.size
        exchange = Hierarchical(AllGather())
        exchange.check(engine)
        bucket = bucket_for(exchange, drawn(engine.rank), engine)
        exchange.prepare(bucket, engine, is_finite=True)
        return bool(bucket.gradient.any())

    assert dgc.simulate(3, worker) == [True, False, False]
    exchange = Hierarchical(AllGather())
    exchange.check(
        SimpleNamespace(
            rank=1,
            size=2,
            local_rank=1,
            local_size=2,
            all_gather=lambda tensor: torch.tensor([[0, 2], [1, 2]]),
        )
    )
    assert exchange.bytes_inside(NUMEL) == 4 * NUMEL


def test_a_planner_that_needs_timing_knows_how_many_ranks_a_machine_has():
    """A gather among two machines is faster than dense where one among eight ranks is not."""
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


@pytest.mark.parametrize('make', [AllReduce, PowerSGD], ids=['all-reduce', 'PowerSGD'])
def test_a_sum_that_lies_in_the_buckets_total_already_is_kept(make):
    """The inner exchange's first dense contribution may lie where the machine's sum is written."""

    def worker(engine):
        exchange = Hierarchical(make(), 2)
        bucket = bucket_for(exchange, drawn(engine.rank), engine)
        exchange.prepare(bucket, engine, is_finite=True)
        selected = Sparse(bucket.gradient.clone(), None, NUMEL)
        return total_of(
            exchange.reduce(selected, Context(bucket, NUMEL, Codec(), engine)).contributions
        )

    expected = sum(drawn(rank) for rank in range(4))
    for total in dgc.simulate(4, worker):
        torch.testing.assert_close(total, expected)


@pytest.mark.parametrize('victim', [0, 1, 2, 5])
@pytest.mark.parametrize(
    'make', [AllReduce, PowerSGD, partial(RandomK, 3)], ids=['all-reduce', 'PowerSGD', 'random-k']
)
def test_all_ranks_report_a_non_finite_gradient_of_any_machine(make, victim):
    """Also where the inner exchange reports it apart from element 0 of its result."""

    def worker(engine):
        exchange = Hierarchical(make(), 2)
        bucket = bucket_for(exchange, drawn(engine.rank), engine)
        if engine.rank == victim:
            bucket.gradient[7] = torch.nan
        is_finite = exchange.prepare(bucket, engine, is_finite=engine.rank != victim)
        selected = Sparse(bucket.gradient.clone(), None, NUMEL)
        if not is_finite:
            selected = non_finite_message(bucket, Payload.DENSE)
        return exchange.reduce(selected, Context(bucket, 2, Codec(), engine, is_finite)).non_finite

    assert dgc.simulate(6, worker) == [True] * 6


@pytest.mark.parametrize(
    'inner', [AllGather(), SparDL(), PowerSGD(), RandomK(), RandomK(unbiased=True)]
)
def test_it_has_the_properties_of_the_inner_exchange(inner):
    names = ('accepts', 'selects', 'loses', 'is_estimate', 'approximates', 'unbiased', 'scale')
    outer = Hierarchical(inner, 2)
    assert [getattr(outer, name) for name in names] == [getattr(inner, name) for name in names]
