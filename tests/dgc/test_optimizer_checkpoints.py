"""Checkpoints that programs of other people's write: one file of rank 0, the states of plain
optimizers, torch.distributed.checkpoint, copies of the optimizer itself."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from dgc_helpers import exact, loss, parameters, train, values, wrap
from ps_helpers import World
from state_helpers import assert_same
from test_nonfinite import STATEFUL
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import dgc
from dgc.engines import LocalEngine
from dgc.handshake import gather_states
from dgc.memory import Residual
from dgc.parameter_server import dual_way

EMPTY = 'residuals start empty'
STATES = {
    'sgd': lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    'adamw': lambda params: torch.optim.AdamW(params, lr=0.01),
}
MOMENTA = [(0.9, False, 0.0), (0.9, False, 0.01), (0.9, True, 0.01), (0.9, True, 0.0)]
momenta = pytest.mark.parametrize(('momentum', 'nesterov', 'weight_decay'), MOMENTA)


def through_file(state):
    """As torch.save writes it and torch.load reads it, without arbitrary pickles."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def put(named, numbers) -> None:
    """Overwrite the parameters, as a model's state does."""
    with torch.no_grad():
        for (_, parameter), value in zip(named, numbers, strict=True):
            parameter.copy_(value)


def trained_world(size, steps=3, make=exact, **settings):
    """Of each rank: its own state, that of all ranks, the parameters and the memory."""

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, make(), engine, **settings)
        train(optimizer, named, steps, engine.rank)
        own, whole = optimizer.state_dict(), optimizer.gather_state_dict()
        memory = optimizer.reducer.state_dict()['memory']
        return through_file(own), through_file(whole), values(named), memory

    return dgc.simulate(size, worker)


def mean_of(memories, entry):
    """The ranks' mean of an entry, by parameter, in float64."""
    names = {name for memory in memories for name in memory}
    return {
        name: sum(memory[name][entry].double() for memory in memories) / len(memories)
        for name in names
        if entry in memories[0][name]
    }


# ---------------------------------------------------------------- plain optimizers


@pytest.mark.parametrize('make', STATES.values(), ids=STATES)
def test_a_plain_optimizer_goes_on_from_our_state(make):
    named = parameters()
    inner = make([p for _, p in named])
    optimizer = dgc.DistributedOptimizer(inner, named, exact(memory=Residual()), LocalEngine())
    train(optimizer, named, 2)
    state = through_file(optimizer.state_dict())
    assert {'state', 'param_groups'} <= state.keys()
    assert_same({key: state[key] for key in inner.state_dict()}, inner.state_dict())
    other = parameters()
    plain = make([p for _, p in other])
    plain.load_state_dict(state)
    assert_same(plain.state_dict(), inner.state_dict())
    loss(other, 0, 3).backward()
    plain.step()


@pytest.mark.parametrize('make', STATES.values(), ids=STATES)
def test_a_plain_optimizer_s_state_is_loaded_and_one_rank_says_that_the_memory_is_empty(make):
    named = parameters()
    plain = make([p for _, p in named])
    train(plain, named, 2)
    state = through_file(plain.state_dict())

    def worker(engine):
        ours = parameters()
        inner = make([p for _, p in ours])
        optimizer = dgc.DistributedOptimizer(inner, ours, exact(memory=Residual()), engine)
        train(optimizer, ours, 2, engine.rank)
        optimizer.load_state_dict(copy.deepcopy(state))
        assert_same(inner.state_dict(), plain.state_dict())
        assert optimizer.steps == 0
        memory = optimizer.reducer.state_dict()['memory']
        assert not any(t.any() for entries in memory.values() for t in entries.values())

    with pytest.warns(UserWarning) as caught:
        dgc.simulate(2, worker)
    assert [EMPTY in str(each.message) for each in caught].count(True) == 1


def test_what_is_no_optimizer_s_state_is_refused():
    optimizer = wrap(parameters(), exact())
    with pytest.raises(ValueError, match=r"'state' and 'param_groups', and got model, epoch"):
        optimizer.load_state_dict({'model': {}, 'epoch': 3})


@pytest.mark.parametrize('state', [{'steps': 3}, {'steps': 3, 'ranks': {}}], ids=['none', 'empty'])
def test_local_steps_refuse_a_state_without_any_rank_s_memory(state):
    with pytest.raises(ValueError, match="has nothing in 'ranks'"):
        of_local_steps().load_state_dict(state)


def test_a_state_in_the_layout_of_earlier_versions_is_loaded():
    named = parameters()
    optimizer = wrap(named, exact(), momentum=0.9, weight_decay=0.01)
    train(optimizer, named, 3)
    older = {
        'optimizer': optimizer.optimizer.state_dict(),
        **optimizer.reducer.state_dict(),
        'steps': optimizer.steps,
    }
    del older['optimizer']['param_groups'][0]['dampening']
    resumed = wrap(parameters(), exact(), momentum=0.9, weight_decay=0.01)
    resumed.load_state_dict(through_file(older))
    assert_same(resumed.state_dict(), optimizer.state_dict())


# ---------------------------------------------------------------- SGD's momentum


@momenta
def test_sgd_s_momentum_moves_into_dgcsgd(momentum, nesterov, weight_decay):
    """Half of the steps with SGD on the mean gradient, half with DGC at density 1."""
    settings = {'momentum': momentum, 'nesterov': nesterov, 'weight_decay': weight_decay}

    def worker(engine):
        straight, first = parameters(), parameters()
        dense = [
            dgc.DistributedOptimizer(
                torch.optim.SGD([p for _, p in each], lr=0.1, **settings),
                each, dgc.dense(), engine,
            )
            for each in (straight, first)
        ]  # fmt: skip
        for each, named, steps in zip(dense, (straight, first), (8, 4), strict=True):
            train(each, named, steps, engine.rank)
        second = parameters()
        optimizer = wrap(second, exact(1.0), engine, **settings)
        put(second, values(first))
        optimizer.load_state_dict(copy.deepcopy(dense[1].optimizer.state_dict()))
        train(optimizer, second, range(4, 8), engine.rank)
        for ours, theirs in zip(values(second), values(straight), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        dgc.simulate(2, worker)


@momenta
def test_dgcsgd_s_momentum_moves_into_sgd(momentum, nesterov, weight_decay):
    settings = {'momentum': momentum, 'nesterov': nesterov, 'weight_decay': weight_decay}
    make = lambda: exact(1.0)  # noqa: E731
    halfway = trained_world(2, 4, make, **settings)
    straight = trained_world(2, 8, make, **settings)
    named = parameters()
    plain = torch.optim.SGD([p for _, p in named], lr=0.1, **settings)
    plain.load_state_dict(halfway[1][1])
    put(named, halfway[1][2])
    for step in range(4, 8):
        plain.zero_grad()
        (sum(loss(named, rank, step) for rank in range(2)) / 2).backward()
        plain.step()
    for ours, theirs in zip(values(named), straight[0][2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_sgd_s_momentum_in_our_own_state_is_not_applied_twice():
    """gather_state_dict() has it for SGD; DGCSGD has it in the memory."""
    (_, whole, reached, _), *_ = trained_world(1, 3, momentum=0.9)
    assert any('momentum_buffer' in entries for entries in whole['state'].values())
    named = parameters()
    optimizer = wrap(named, exact(), momentum=0.9)
    put(named, reached)
    optimizer.load_state_dict(whole)
    train(optimizer, named, range(3, 5))
    straight = trained_world(1, 5, momentum=0.9)[0][2]
    assert all(map(torch.equal, values(named), straight))


@pytest.mark.parametrize('setting', [{'dampening': 0.5}, {'maximize': True}], ids=str)
def test_sgd_s_settings_that_dgcsgd_lacks_are_refused(setting):
    named = parameters()
    plain = torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9, **setting)
    with pytest.raises(ValueError, match=f'the saved SGD has {next(iter(setting))}='):
        wrap(parameters(), exact(), momentum=0.9).load_state_dict(plain.state_dict())


def test_momentum_that_memory_and_optimizer_would_both_apply_is_refused_at_loading():
    named = parameters()
    plain = torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9)
    sgd = torch.optim.SGD([p for _, p in named], lr=0.1)
    optimizer = dgc.DistributedOptimizer(sgd, named, exact(), LocalEngine())
    with pytest.raises(ValueError, match='SGD would apply it again'):
        optimizer.load_state_dict(plain.state_dict())


def test_a_loaded_momentum_ends_before_its_numbers_are_denormal():
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = dgc.DGCSGD([parameter], lr=0.1, momentum=0.5)
    state = optimizer.state_dict()
    state['state'] = {0: {'momentum_buffer': torch.ones(3)}}
    optimizer.load_state_dict(state)
    for _ in range(60):
        parameter.grad = torch.zeros(3)
        optimizer.step()
    assert parameter not in optimizer.state
    torch.testing.assert_close(parameter.detach(), torch.full((3,), -0.1))  # 0.1 (½ + ¼ + …)


# ---------------------------------------------------------------- rank and world size


def test_the_ranks_of_a_whole_are_told_apart_bit_for_bit():
    saved = trained_world(2, momentum=0.9, weight_decay=0.01)
    assert_same(saved[0][1], saved[1][1])  # any rank may write it
    assert_same(saved[0][1]['ranks'], {**saved[0][0]['ranks'], **saved[1][0]['ranks']})
    straight = trained_world(2, 6, momentum=0.9, weight_decay=0.01)

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, exact(), engine, momentum=0.9, weight_decay=0.01)
        put(named, saved[0][2])
        optimizer.load_state_dict(copy.deepcopy(saved[0][1]))
        assert_same(optimizer.reducer.state_dict()['memory'], saved[engine.rank][3])
        train(optimizer, named, range(3, 6), engine.rank)
        return values(named)

    for rank, reached in enumerate(dgc.simulate(2, worker)):
        assert all(map(torch.equal, reached, straight[rank][2]))


def test_states_longer_than_a_broadcast_are_gathered(monkeypatch):
    monkeypatch.setattr('dgc.handshake.CHUNK', 1000)

    def worker(engine):
        state = {'of': engine.rank, 'numbers': torch.arange(500.0) * (engine.rank + 1)}
        state['more'] = [state['numbers'].half()] * engine.rank  # of another length on each rank
        return state, gather_states(engine, state, 'cpu')

    results = dgc.simulate(3, worker)
    for _, gathered in results:
        assert_same(gathered, [state for state, _ in results])


@pytest.mark.parametrize(('old', 'new'), [(2, 3), (3, 2), (1, 2), (4, 1)])
def test_a_whole_keeps_the_mean_of_the_residuals_at_another_world_size(old, new):
    saved = trained_world(old, momentum=0.9)

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, exact(), engine, momentum=0.9)
        optimizer.load_state_dict(copy.deepcopy(saved[0][1]))
        assert optimizer.steps == 3
        return optimizer.reducer.state_dict()['memory']

    loaded = dgc.simulate(new, worker)
    for entry in ('velocity', 'momentum'):
        before, now = mean_of([each[3] for each in saved], entry), mean_of(loaded, entry)
        assert before and any(tensor.any() for tensor in before.values())
        for name, tensor in before.items():
            assert float((now[name] - tensor).norm()) <= 1e-6 * max(float(tensor.norm()), 1e-30)


@pytest.mark.parametrize('name', ['hierarchical', 'oktopk', 'powersgd', 'dgc'])
def test_rank_0_s_state_loaded_by_all_counts_once_and_training_goes_on(name):
    """The others' memories start empty, and say so; all ranks make the same collectives."""
    make = exact if name == 'dgc' else STATEFUL[name]
    saved = trained_world(2, make=make)

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, make(), engine)
        optimizer.load_state_dict(copy.deepcopy(saved[0][0]))
        memory = optimizer.reducer.state_dict()['memory']
        put(named, saved[0][2])
        train(optimizer, named, range(3, 6), engine.rank)
        return memory, values(named)

    with pytest.warns(UserWarning, match='rank 1 of 2 loads the state of rank 0') as caught:
        (first, ours), (second, theirs) = dgc.simulate(2, worker)
    assert sum('loads the state' in str(each.message) for each in caught) == 1
    assert_same(first, saved[0][3])
    kept = ('residual', 'velocity')
    assert not any(second[n][e].any() for n in second for e in second[n] if e in kept)
    assert all(map(torch.equal, ours, theirs))


def test_one_of_several_ranks_of_another_world_size_is_refused():
    state = trained_world(2)[1][0]
    optimizer = wrap(parameters(), exact())
    with pytest.raises(ValueError, match=r'that of rank 1 of 2, and there are 1 ranks here: save'):
        optimizer.load_state_dict(state)


def test_rank_0_s_state_of_local_steps_counts_once_too():
    def make(named, engine):
        params = [p for _, p in named]
        inner, outer = (torch.optim.SGD(params, lr=rate) for rate in (0.1, 1.0))
        return dgc.LocalSteps(inner, outer, named, exact(memory=Residual()), engine, every=2)

    def save(engine):
        named = parameters()
        optimizer = make(named, engine)
        train(optimizer, named, 4, engine.rank)
        return optimizer.state_dict()

    states = dgc.simulate(2, save)

    def load(engine):
        optimizer = make(parameters(), engine)
        optimizer.load_state_dict(copy.deepcopy(states[0]))
        return optimizer.reducer.state_dict()['memory']

    with pytest.warns(UserWarning, match='rank 1 of 2 loads the state of rank 0'):
        first, second = dgc.simulate(2, load)
    assert first['wide.weight']['residual'].any()
    assert not any(entries['residual'].any() for entries in second.values())


# ---------------------------------------------------------------- copies


def of_local_steps():
    named = parameters()
    params = [p for _, p in named]
    inner, outer = torch.optim.SGD(params, lr=0.1), torch.optim.SGD(params, lr=1.0)
    return dgc.LocalSteps(inner, outer, named, engine=LocalEngine())


WRAPPERS = {
    'DistributedOptimizer': lambda: wrap(parameters(), exact()),
    'LocalSteps': of_local_steps,
    'WorkerOptimizer': lambda: World(dual_way).join().optimizer,
}


@pytest.mark.parametrize('name', WRAPPERS)
def test_copies_are_refused_in_one_line(name):
    optimizer = WRAPPERS[name]()
    ways = [copy.copy, copy.deepcopy, pickle.dumps, lambda each: torch.save(each, io.BytesIO())]
    for way in ways:
        with pytest.raises(TypeError, match=f'^{name} cannot be copied or pickled.*: .*$'):
            way(optimizer)


# ---------------------------------------------------------------- torch.distributed.checkpoint


def test_a_step_that_would_lose_residuals_at_rate_0_is_refused():
    """get_optimizer_state_dict() takes one, to create the optimizer's state."""
    named = parameters()
    model = torch.nn.ParameterDict({name.replace('.', '_'): p for name, p in named})
    optimizer = wrap(named, exact())
    train(optimizer, named, 2)
    optimizer.zero_grad()
    before = optimizer.reducer.state_dict()
    with pytest.raises(RuntimeError, match=r'give DistributedOptimizer itself to'):
        get_optimizer_state_dict(model, optimizer)
    assert_same(optimizer.reducer.state_dict(), before)


@pytest.mark.xdist_group('torchrun 2')
def test_torch_distributed_checkpoint_saves_every_rank_s_residuals(worlds, tmp_path):
    folder = tmp_path / 'saved'
    ranks = worlds('torchrun', 2).run('checkpoint_worker:distributed', str(folder))
    for each in ranks:
        assert_same(each['loaded'], each['saved'])
        assert each['steps'] == 3
        assert all(map(torch.equal, each['resumed'], each['straight']))
        assert "of the wrapped optimizer's state" in each['lacking']
    first, second = (each['saved']['wide.weight']['velocity'] for each in ranks)
    assert not torch.equal(first, second)

    # Another world size, by way of one file.
    file = tmp_path / 'one.pt'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        dcp_to_torch_save(folder, file)
    optimizer = wrap(parameters(), exact(), momentum=0.9, weight_decay=0.01)
    optimizer.load_state_dict(torch.load(file, weights_only=True)['optimizer'])
    assert optimizer.steps == 3
    now = mean_of([optimizer.reducer.state_dict()['memory']], 'velocity')
    for name, tensor in mean_of([each['saved'] for each in ranks], 'velocity').items():
        torch.testing.assert_close(now[name], tensor, rtol=1e-6, atol=1e-9)
