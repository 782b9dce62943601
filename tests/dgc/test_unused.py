"""Parameters that no rank used in a step: docs/failures.md, row 9."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import exact, loss, parameters, values, wrap
from state_helpers import assert_same
from test_nonfinite import STATEFUL
from torch.nn import Parameter

import dgc
from dgc.compressors import TopK
from dgc.engines import LocalEngine
from dgc.exchanges import AllGather
from dgc.handshake import HandshakeError
from dgc.memory import MomentumCorrection, Residual
from dgc.planner import Whole

DECAY = 0.1
IDLE = ('narrow.weight', 'bias')
COMPOSITIONS = {
    'dense': dgc.dense,
    'dgc': lambda: dgc.deep_gradient_compression(0.02),
    'skip': lambda: dgc.deep_gradient_compression(0.02, nonfinite='skip'),
    'compressed alone': lambda: dgc.Composition(
        memory=Residual(),
        compressor=TopK(),
        exchange=AllGather(),
        schedule=dgc.DensitySchedule(0.02),
        rules=dgc.LayerRules(min_dims=0),
        planner=Whole(),
    ),
    'demo': lambda: dgc.ALGORITHMS['demo'].make(),
    **{name: STATEFUL[name] for name in ('hierarchical', 'oktopk', 'powersgd', '1-bit adam')},
}


def without_idle(named, idle=IDLE):
    return [(name, parameter) for name, parameter in named if name not in idle]


def state_of(optimizer, names):
    """What the parts keep of some parameters, and the optimizer's own state of them."""
    ours, parts = optimizer.optimizer, optimizer.reducer.state_dict()
    held = {role: {n: parts[role][n] for n in names} for role in ('memory', 'exchange')}
    by_name = {m.name: m.parameter for bucket in optimizer.buckets for m in bucket.members}
    held['optimizer'] = [
        {key: each.clone() if torch.is_tensor(each) else each for key, each in state.items()}
        for state in (ours.state.get(by_name[name], {}) for name in names)
    ]
    return held


@pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_what_no_rank_used_keeps_values_residual_and_momentum_and_has_no_gradient(make):
    """Fails where zeros are applied: weight decay, momentum and the residual then move it."""

    def worker(engine):
        named, composition = parameters(), make()
        momentum = 0.9 if composition.memory.holds_momentum else 0.0
        optimizer = wrap(named, composition, engine, momentum=momentum, weight_decay=DECAY)
        for step in range(3):
            optimizer.zero_grad()
            loss(named, engine.rank, step).backward()
            optimizer.step()
        before, kept = values(named), state_of(optimizer, IDLE)
        for step in range(3, 6):
            optimizer.zero_grad()
            loss(without_idle(named), engine.rank, step).backward()
            optimizer.step()
            assert [name for name, p in named if p.grad is None] == list(IDLE)
        moved = [
            name
            for (name, p), old in zip(named, before, strict=True)
            if not torch.equal(p.detach(), old)
        ]
        assert_same(state_of(optimizer, IDLE), kept)
        return moved, values(named)

    results = dgc.simulate(4, worker)
    assert all(moved == ['wide.weight', 'scale'] for moved, _ in results)
    assert all(map(torch.equal, results[0][1], results[3][1]))


def test_what_one_rank_used_is_moved_on_all_by_the_mean():
    def worker(engine):
        named = parameters()
        optimizer = wrap(named, dgc.dense(), engine, lr=1.0)
        before = dict(named)['bias'].detach().clone()
        used = named if engine.rank == 1 else without_idle(named)
        sum(parameter.sum() for _, parameter in used).backward()
        optimizer.step()
        return (before - dict(named)['bias'].detach()).tolist()

    assert dgc.simulate(4, worker) == [pytest.approx([0.25] * 10)] * 4


@pytest.mark.parametrize('ranks', [1, 2])
@pytest.mark.parametrize(
    'make',
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=DECAY),
        lambda p: torch.optim.AdamW(p, 0.1, weight_decay=DECAY),
    ],
    ids=['sgd', 'adamw'],
)
@pytest.mark.parametrize('set_to_none', [True, False])
def test_it_is_what_torch_does(make, ranks, set_to_none):
    """Parameters are used in turn, also one that is zeroed in place, which torch then moves."""

    def train(named, optimizer):
        for step in range(8):
            optimizer.zero_grad(set_to_none)
            loss(without_idle(named, IDLE[step % 3 :] if step < 4 else IDLE), 0, step).backward()
            optimizer.step()
        return values(named)

    def worker(engine):
        named = parameters()
        inner = make([p for _, p in named])
        return train(named, dgc.DistributedOptimizer(inner, named, dgc.dense(), engine))

    plain = parameters()
    right = train(plain, make([p for _, p in plain]))
    for result in dgc.simulate(ranks, worker):
        torch.testing.assert_close(result, right, rtol=1e-6, atol=1e-6)


def test_without_find_unused_zeros_are_applied():
    named = parameters()
    inner = torch.optim.SGD([p for _, p in named], lr=0.1, weight_decay=DECAY)
    optimizer = dgc.DistributedOptimizer(
        inner, named, dgc.dense(), LocalEngine(), find_unused=False
    )
    before = dict(named)['bias'].detach().clone()
    loss(without_idle(named), 0, 0).backward()
    optimizer.step()
    torch.testing.assert_close(dict(named)['bias'].detach(), before * (1 - 0.1 * DECAY))


def test_ranks_that_differ_in_it_are_refused():
    def worker(engine):
        named = parameters()
        inner = torch.optim.SGD([p for _, p in named], lr=0.1)
        with pytest.raises(HandshakeError, match='rank 1 and rank 0 differ in find_unused'):
            dgc.DistributedOptimizer(
                inner, named, dgc.dense(), engine, find_unused=engine.rank == 0
            )

    dgc.simulate(2, worker)


def sparse_in_turn(engine, make, make_composition, never=False, **settings):
    """Train an embedding that each rank uses in every other step, and not in some last ones.

    Args:
        engine: None for one process on the samples of both ranks.
        make: Makes the optimizer.
        make_composition: Makes the composition.
        never: Whether rank 1 never uses it.
        settings: Of the DistributedOptimizer.

    Returns:
        The layout of ``.grad`` after each step, and the values.
    """
    torch.manual_seed(0)
    layer, layouts = torch.nn.Embedding(20, 3, sparse=True), []
    optimizer = make(layer.parameters())
    ranks = range(2)
    if engine is not None:
        optimizer = dgc.DistributedOptimizer(
            optimizer, layer.named_parameters(), make_composition(), engine, **settings
        )
        ranks = [engine.rank]
    for step in range(6):
        optimizer.zero_grad()
        for rank in ranks:
            draw = torch.Generator().manual_seed(10 * step + rank)
            inputs = torch.randint(20, (4,), generator=draw)
            if rank == 0 if never else (step + rank) % 2 and step < 4:
                (layer(inputs).square().sum() / len(ranks)).backward()
        optimizer.step()
        layouts.append(None if layer.weight.grad is None else layer.weight.grad.layout)
    return layouts, layer.weight.detach().clone()


SPARSE_STEPS = {
    'sgd': lambda p: torch.optim.SGD(p, 0.1),
    'momentum': lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    'sparse adam': lambda p: torch.optim.SparseAdam(p, 0.1),
    'adagrad': lambda p: torch.optim.Adagrad(p, 0.1),
}
AT_DENSITY_1 = {
    'dense': dgc.dense,
    'compressed': lambda: exact(
        1.0, memory=Residual(), rules=dgc.LayerRules(min_dims=0), always_sparse=True
    ),
}


@pytest.mark.parametrize('make', SPARSE_STEPS.values(), ids=SPARSE_STEPS)
@pytest.mark.parametrize('make_composition', AT_DENSITY_1.values(), ids=AT_DENSITY_1)
@pytest.mark.parametrize('never', [False, True])
def test_a_sparse_mean_is_sparse_also_on_a_rank_that_did_not_use_it(make, make_composition, never):
    """As of one process on the samples of all; ``SparseAdam`` takes no dense gradients."""
    layouts, right = sparse_in_turn(None, make, make_composition, never)
    for found, weight in dgc.simulate(
        2, lambda engine: sparse_in_turn(engine, make, make_composition, never)
    ):
        assert found == layouts and torch.sparse_coo in found
        torch.testing.assert_close(weight, right, rtol=1e-5, atol=1e-6)


def test_without_find_unused_a_rank_goes_by_its_last_gradient():
    """Rank 0 has none in the first step, in which nothing tells it the layout."""

    def worker(engine):
        layouts, _ = sparse_in_turn(
            engine, SPARSE_STEPS['sgd'], dgc.dense, never=False, find_unused=False
        )
        return layouts

    first, second = dgc.simulate(2, worker)
    assert first == [torch.strided, *[torch.sparse_coo] * 5]
    assert second == [torch.sparse_coo] * 6


def test_a_gradient_that_becomes_dense_is_dense_on_all_ranks():
    def worker(engine):
        layer, layouts = torch.nn.Embedding(20, 3, sparse=True), []
        inner = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer = dgc.DistributedOptimizer(inner, None, dgc.dense(), engine)
        for step in range(4):
            optimizer.zero_grad()
            layer.sparse = step < 2
            if engine.rank == 0 or not step:
                layer(torch.tensor([1, 2])).sum().backward()
            optimizer.step()
            layouts.append(layer.weight.grad.layout)
        return layouts

    expected = [torch.sparse_coo] * 2 + [torch.strided] * 2
    assert dgc.simulate(2, worker) == [expected] * 2


MESSAGES = {  # of an all-reduce among 2 ranks: 2; of an all-gather: 1
    'dense': (dgc.dense, 0, 2),  # the flag is carried: only what finds them is a message
    'dgc': (lambda: dgc.deep_gradient_compression(0.02), 0, 2),
    'compressed alone': (COMPOSITIONS['compressed alone'], 2, 4),
}


@pytest.mark.parametrize(('make', 'used', 'unused'), MESSAGES.values(), ids=MESSAGES)
def test_what_it_costs(make, used, unused):
    """Messages more than without, in a step in which all is used, and in one in which not; and no
    byte that is counted as a gradient's."""

    def worker(engine, find_unused):
        named, counts = parameters(), []
        composition = make()
        kind = dgc.DGCSGD if composition.memory.holds_momentum else torch.optim.SGD
        optimizer = dgc.DistributedOptimizer(
            kind([p for _, p in named], lr=0.1), named, composition, engine,
            find_unused=find_unused,
        )  # fmt: skip
        for used in (named, without_idle(named)):
            before = engine.traffic.messages
            optimizer.zero_grad()
            loss(used, 0, 0).backward()
            optimizer.step()
            counts.append(engine.traffic.messages - before)
        return counts, optimizer.progress.sent

    with_it = dgc.simulate(2, lambda engine: worker(engine, True))[0]
    without = dgc.simulate(2, lambda engine: worker(engine, False))[0]
    assert [a - b for a, b in zip(with_it[0], without[0], strict=True)] == [used, unused]
    assert with_it[1] == without[1]


def test_a_worker_of_a_parameter_server_does_not_decay_what_it_did_not_use():
    from ps_helpers import World

    from dgc.parameter_server import dual_way

    world = World(lambda: dual_way(1.0), slots=1, weight_decay=DECAY)
    worker = world.join()
    before = values(worker.named)
    worker.optimizer.zero_grad()
    loss(without_idle(worker.named), 0, 0).backward()
    worker.optimizer.step()
    for (name, parameter), old in zip(worker.named, before, strict=True):
        assert torch.equal(parameter.detach(), old) == (name in IDLE), name


def test_a_memory_of_momentum_has_no_trace_of_it():
    """The state is put back also where it is not zero and momentum would act on it."""
    named = [('a', Parameter(torch.ones(4, 4))), ('b', Parameter(torch.ones(4, 4)))]
    composition = dgc.Composition(
        memory=MomentumCorrection(), compressor=TopK(), exchange=AllGather(),
        schedule=dgc.DensitySchedule(0.1),
    )  # fmt: skip
    optimizer = wrap(named, composition, momentum=0.9)
    (named[0][1].sum() + 3 * named[1][1].sum()).backward()
    optimizer.step()
    kept = optimizer.reducer.state_dict()['memory']['b']
    assert kept['velocity'].any() and kept['momentum'].any()
    optimizer.zero_grad()
    named[0][1].sum().backward()
    optimizer.step()
    assert_same(optimizer.reducer.state_dict()['memory']['b'], kept)
