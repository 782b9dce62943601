"""Muon and AdamW as one optimizer: the same as two, also wrapped and loaded."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dgc
from dgc.memory import Residual
from dgc.optim import MuonAndAdamW
from dgc.optim.muon import Float32Products

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, 'Muon'), reason='Muon came with torch 2.9')

RATE = 0.01


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def backward(model: nn.Module, seed: int) -> None:
    tokens = torch.randint(7, (5,), generator=torch.Generator().manual_seed(seed))
    model(tokens).square().sum().backward()


def train(model: nn.Module, optimizers, steps: range) -> list[torch.Tensor]:
    for step in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(model, step)
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def equal(one, other) -> bool:
    return all(a.equal(b) for a, b in zip(one, other, strict=True))


def separate(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    return [
        torch.optim.Muon(matrices, lr=RATE, weight_decay=0.1, adjust_lr_fn='match_rms_adamw'),
        torch.optim.AdamW(rest, lr=RATE, weight_decay=0.1, betas=(0.9, 0.95)),
    ]


def test_it_is_muon_for_matrices_and_adamw_for_the_rest():
    one, two = network(), network()
    found = train(one, [MuonAndAdamW(one.parameters(), RATE)], range(4))
    with Float32Products():
        assert equal(found, train(two, separate(two), range(4)))


def test_names_leave_the_ends_of_a_network_to_adamw():
    model = nn.ModuleDict({'embedding': nn.Embedding(7, 6), 'hidden': nn.Linear(6, 8)})
    model['lm_head'] = nn.Linear(8, 7)
    optimizer = MuonAndAdamW(model.named_parameters(), RATE)
    muon, adamw = optimizer.param_groups
    assert [tuple(p.shape) for p in muon['params']] == [(8, 6)]
    assert len(adamw['params']) == 4
    optimizer = MuonAndAdamW(model.named_parameters(), RATE, others=())
    assert len(optimizer.param_groups[0]['params']) == 3


def test_settings_of_groups_go_to_both_parts():
    model = network()
    first, second = list(model[1].parameters()), list(model[3].parameters())
    groups = [{'params': first}, {'params': second, 'weight_decay': 0.0, 'lr': 0.5}]
    found = MuonAndAdamW(groups, RATE).param_groups
    assert [(g['kind'], g['lr'], g['weight_decay']) for g in found] == [
        ('muon', RATE, 0.1), ('adamw', RATE, 0.1), ('muon', 0.5, 0.0), ('adamw', 0.5, 0.0),
    ]  # fmt: skip


def test_a_loaded_state_changes_nothing():
    one, two = network(), network()
    first = MuonAndAdamW(one.parameters(), RATE)
    train(one, [first], range(3))
    two.load_state_dict(one.state_dict())
    second = MuonAndAdamW(two.parameters(), RATE)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert equal(train(one, [first], range(3, 6)), train(two, [second], range(3, 6)))
    moments = {key for held in second.state.values() for key in held}
    assert {'momentum_buffer', 'exp_avg', 'exp_avg_sq'} <= moments


def test_a_scheduler_sets_the_rate_of_all_groups():
    optimizer = MuonAndAdamW(network().parameters(), RATE)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert {group['lr'] for group in optimizer.param_groups} == {RATE / 2}


@pytest.mark.parametrize('density', [1.0, 0.1])
def test_ranks_step_on_their_mean(density):
    def worker(engine):
        model = network()
        optimizer = dgc.DistributedOptimizer(
            MuonAndAdamW(model.parameters(), RATE),
            model.named_parameters(),
            dgc.deep_gradient_compression(density, memory=Residual()),
            engine,
        )
        for step in range(3):
            optimizer.zero_grad()
            backward(model, 10 * step + engine.rank)
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    first, second = dgc.simulate(2, worker)
    assert equal(first, second)
    if density < 1:
        return
    model = network()
    optimizer = MuonAndAdamW(model.parameters(), RATE)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, 10 * step)
        backward(model, 10 * step + 1)
        for parameter in model.parameters():
            parameter.grad.div_(2)
        optimizer.step()
    for ours, plain in zip(first, model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain.detach(), rtol=1e-4, atol=1e-5)


def test_products_of_bfloat16_matrices_are_computed_in_float32():
    torch.manual_seed(3)
    a, b = torch.randn(2, 64, 64).bfloat16()
    wide = a.float() @ b.float()
    with Float32Products():
        assert (a @ b).equal(wide.bfloat16())
        added = torch.addmm(a, a, b, beta=0.5, alpha=2.0)
    torch.testing.assert_close(added.float(), 0.5 * a.float() + 2 * wide, rtol=1 / 2**8, atol=1e-5)


def test_other_calls_are_as_without_it():
    torch.manual_seed(3)
    a, b = torch.randn(2, 64, 64).bfloat16()

    def calls():
        yield from (a + b, a.double() @ b.double(), a.float() @ b.float(), a.matmul(other=b))
        yield torch.addmm(a, a, b, out=torch.empty_like(a))
        yield torch.addmm(input=a, mat1=a, mat2=b)

    plain = list(calls())
    with Float32Products():
        assert equal(plain, list(calls()))


def test_a_step_is_muons_in_bfloat16_within_its_rounding():
    torch.manual_seed(3)
    start, gradient = torch.randn(2, 64, 64)
    found = []
    for make in (MuonAndAdamW, torch.optim.Muon):
        parameter = nn.Parameter(start.clone())
        parameter.grad = gradient.clone()
        make([parameter], lr=1.0, weight_decay=0.0, adjust_lr_fn='match_rms_adamw').step()
        found.append(parameter.detach() - start)
    ours, plain = found
    a, b = torch.randn(2, 64, 64).bfloat16()
    rounds_once = torch.equal(a @ b, (a.float() @ b.float()).bfloat16())  # with instructions for it
    assert rounds_once or not torch.equal(ours, plain)
    assert (ours - plain).norm() < 0.02 * plain.norm()


def test_all_products_of_muon_are_computed_in_float32(monkeypatch):
    counted = []
    convert = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, 'float', lambda x: counted.append(x.shape) or convert(x))
    model = nn.Linear(6, 8)
    model(torch.ones(1, 6)).sum().backward()
    MuonAndAdamW(model.parameters(), RATE).step()
    assert len(counted) == 5 * (2 + 3 + 3)  # iterations: A·Aᵀ, and two sums of a product
