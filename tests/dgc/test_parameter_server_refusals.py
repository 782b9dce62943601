"""Refusals of a server, which name the reason, and after which it continues."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from dgc_helpers import loss, parameters
from ps_helpers import BUFFERS, Wire, World

from dgc.compressors import TopK
from dgc.memory import Residual
from dgc.parameter_server import Budget, Server, ServerError, WorkerOptimizer, dual_way

exact = partial(dual_way, compress_ratio=0.05, compressor=TopK(), secondary=TopK())


def test_a_checkpoint_of_another_model_is_refused():
    world = World(exact)
    state = world.server.state_dict()
    del state['parameters']['wide.weight']
    with pytest.raises(ValueError, match=r'no wide\.weight of shape \(64, 20\)'):
        world.new_server().load_state_dict(state)


@pytest.mark.parametrize(
    ('change', 'aspect'),
    [
        (lambda named: named.pop(), 'parameter names'),
        (
            lambda named: named.append(('more', torch.nn.Parameter(torch.ones(2)))),
            'parameter names',
        ),
        (
            lambda named: named.__setitem__(0, (named[0][0], torch.nn.Parameter(torch.ones(3, 3)))),
            'parameter shapes',
        ),
    ],
)
def test_another_model_is_refused_and_the_others_train_on(change, aspect, monkeypatch, caplog):
    world = World(exact, slots=2)
    good = world.join()
    named = parameters()
    change(named)
    monkeypatch.setattr('ps_helpers.parameters', lambda: named)
    with pytest.raises(ServerError, match=f'differ in {aspect}'):
        world.join()
    assert f'differ in {aspect}' in caplog.text
    good.step()
    good.assert_recorded()
    assert world.server.version == 1


def test_another_configuration_is_refused():
    world = World(exact)
    server = world.server
    server._digests['the configuration'] = bytes(32)
    with pytest.raises(ServerError, match='differ in the configuration'):
        world.join()


@pytest.mark.parametrize(
    ('budget', 'remedy'),
    [(Budget(0, 1, 1), 'configs.server.workers'), (Budget(1, 1, 0), 'nothing')],
)
def test_an_invalid_budget_is_refused(budget, remedy):
    named = parameters()
    sgd = torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=remedy):
        Server(sgd, named, [], dual_way(), budget)


def test_the_smallest_budget_is_one_update_of_one_worker():
    world = World(exact, slots=1, updates=1)
    world.server.budget._replace(steps_per_epoch=1).check()
    worker = world.join()
    worker.step()
    assert world.server.version == 1 and world.server.finished


@pytest.mark.parametrize(
    ('make', 'settings', 'remedy'),
    [
        (dual_way, {'momentum': 0.0}, 'momentum above 0'),
        (partial(dual_way, memory=Residual()), {}, "set the optimizer's momentum to 0"),
        (dual_way, {'dampening': 0.5}, 'no dampening'),
    ],
)
def test_settings_without_effect_are_refused(make, settings, remedy):
    with pytest.raises(ValueError, match=remedy):
        World(make, **settings)


def test_other_optimizers_and_types_are_refused():
    named = parameters()
    adam = torch.optim.Adam([p for _, p in named])
    with pytest.raises(ValueError, match='Adam cannot train asynchronously'):
        dual_way().trained(adam, named)
    half = parameters(dtype=torch.float16)
    sgd = torch.optim.SGD([p for _, p in half], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match='float32 parameters'):
        dual_way().trained(sgd, half)


def freeze(named, optimizer=None):
    named[0][1].requires_grad_(False)


def thaw(named, optimizer):
    named[0][1].requires_grad_(True)


def add(named, optimizer):
    more = torch.nn.Parameter(torch.ones(2))
    optimizer.add_param_group({'params': [more]})
    named.append(('more', more))


@pytest.mark.parametrize(
    ('begin', 'change', 'reason'),
    [
        (freeze, thaw, '{} was not trained when the optimizer was wrapped'),
        (None, freeze, '{} was trained when the optimizer was wrapped'),
        (None, add, r'a parameter \(2,\) that was added was not trained'),
    ],
    ids=['thawed', 'frozen', 'added'],
)
def test_other_parameters_than_at_the_beginning_are_refused(begin, change, reason, monkeypatch):
    """A thawed or an added one would not be trained, and a frozen one would go on moving."""

    def begun():
        named = parameters()
        if begin is not None:
            begin(named)
        return named

    monkeypatch.setattr('ps_helpers.parameters', begun)
    world, named = World(exact), begun()
    sgd = torch.optim.SGD([p for _, p in named], **world.settings)
    buffers = [torch.ones(BUFFERS)]
    optimizer = WorkerOptimizer(sgd, list(named), buffers, exact(), Wire(world), 'test')

    def step(number):
        optimizer.zero_grad()
        loss(named, 0, number).backward()
        optimizer.step()

    step(0)
    change(named, optimizer)
    message = reason.format(named[0][0])
    with pytest.raises(RuntimeError, match=f'{message}.*: end the server, and begin with a new'):
        step(1)
    assert world.server.version == 1
