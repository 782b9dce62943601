"""When gradients are complete."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from dgc import profile as module
from dgc.profile import Profile, medians, profile


class Slow(torch.autograd.Function):
    """Takes a while on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.02)
        return gradient


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)
        self.unused = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return self.last(Slow.apply(self.frozen(self.first(x)))).sum()


@pytest.fixture
def network():
    return Network()


def test_gradients_come_from_the_last_layer_to_the_first(network):
    profiled = profile(network, lambda: network(torch.ones(2, 4)), batches=3)
    layers = [name.split('.')[0] for name in profiled.arrivals]
    assert layers == ['last', 'last', 'first', 'first']
    times = list(profiled.arrivals.values())
    assert profiled.forward < times[0] and times[-1] <= profiled.backward
    assert times[2] - times[1] > 0.015  # what lies between them


def test_an_accumulated_gradient_is_complete_with_the_last_pass(network):
    def closure():
        network(torch.ones(2, 4)).backward()
        return network(torch.ones(2, 4))

    profiled = profile(network, closure, batches=1)
    assert profiled.forward > 0.015  # the first pass is part of it
    assert all(when > profiled.forward for when in profiled.arrivals.values())


def test_the_last_gradients_stay_and_the_hooks_do_not(network):
    calls = []

    def closure():
        calls.append(1)
        return network(torch.ones(2, 4))

    profile(network, closure, batches=2, warmup=3)
    assert len(calls) == 5
    assert torch.equal(network.last.bias.grad, torch.tensor([2.0]))
    hooks = [p._post_accumulate_grad_hooks for p in network.parameters()]
    assert not any(hooks)


def test_hooks_go_when_a_step_fails(network):
    def closure():
        raise RuntimeError('no more data')

    with pytest.raises(RuntimeError, match='no more data'):
        profile(network, closure, batches=1)
    assert not any(p._post_accumulate_grad_hooks for p in network.parameters())


def test_medians_are_over_the_batches_that_have_it():
    runs = [
        Profile(1.0, 9.0, {'a': 4.0, 'b': 3.0}),
        Profile(3.0, 8.0, {'a': 6.0}),
        Profile(2.0, 7.0, {'a': 5.0, 'b': 3.5}),
    ]
    assert medians(runs) == Profile(2.0, 8.0, {'b': 3.25, 'a': 5.0})
    assert list(medians(runs).arrivals) == ['b', 'a']


def test_no_batch_is_refused(network):
    with pytest.raises(ValueError, match='batches must be at least 1, got 0'):
        profile(network, lambda: network(torch.ones(2, 4)), batches=0)


def test_a_gpu_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, 'synchronize', waited.append)
    module.moment(torch.device('cuda', 0))
    module.moment(torch.device('cpu'))
    assert waited == [torch.device('cuda', 0)]
