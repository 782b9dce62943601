"""Training with a method of the table, against the same steps written out from its paper.

The plain loops know neither buckets nor messages: one process, by step and rank, a tensor at a time
(low_communication_reference.py). Each tensor has a bucket of its own here, as in the papers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import low_communication_reference as reference
import pytest
import torch
from dgc_helpers import loss, parameters, train, values, wrap
from torch import Tensor

import dgc
from dgc.ops.uniform import uniform
from dgc.planner import PerTensor

STEPS = 6
LR = 0.1
WORLD_SIZES = (1, 2, 3, 4, 5)
every_world_size = pytest.mark.parametrize('world_size', WORLD_SIZES)

# Of the parameter's name, its number of steps so far and the ranks' gradients: what is applied.
Rule = Callable[[str, int, list[Tensor]], Tensor]


def unchanged(gradient: Tensor) -> Tensor:
    """No clipping."""
    return gradient


def clamped(gradient: Tensor) -> Tensor:
    """At most 2.5 standard deviations from 0 (Wen et al., section 5)."""
    bound = 2.5 * gradient.double().square().mean().sqrt().float()
    return gradient.clamp(-bound, bound)


def plain(
    world_size: int, rule: Rule, clip: Callable[[Tensor], Tensor] = unchanged
) -> list[Tensor]:
    """The parameters after STEPS of ``w ← w - lr·rule``; vectors take the mean gradient."""
    named = parameters()
    for step in range(STEPS):
        gradients = []
        for rank in range(world_size):
            for _, parameter in named:
                parameter.grad = None
            loss(named, rank, step).backward()
            gradients.append({name: clip(parameter.grad) for name, parameter in named})
        for name, parameter in named:
            of_ranks = [each[name] for each in gradients]
            is_sent = parameter.dim() > 1
            applied = rule(name, step, of_ranks) if is_sent else sum(of_ranks) / world_size
            parameter.data.sub_(LR * applied.view(parameter.shape))
    return values(named)


def trained(world_size: int, method: str, momentum: float = 0.0, **settings) -> list[Tensor]:
    """The parameters after STEPS with a method of the table; the same on all ranks."""

    def worker(engine):
        named = parameters()
        composition = dgc.ALGORITHMS[method].composition(planner=PerTensor(), **settings)
        train(wrap(named, composition, engine, LR, momentum), named, STEPS, engine.rank)
        return values(named)

    first, *others = dgc.simulate(world_size, worker)
    assert all(torch.equal(a, b) for other in others for a, b in zip(other, first, strict=True))
    return first


def assert_close(some: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def draws(rank: int, step: int, name: str, number: int) -> Tensor:
    """The uniform numbers of a rank's message in a step: from its rank, its number and the name."""
    seed = zlib.crc32(f'{rank} {step + 1} {name}'.encode())
    return uniform(seed, number, torch.device('cpu'))


@every_world_size
def test_terngrad(world_size):
    def rule(name, step, gradients):
        messages = []
        for rank, gradient in enumerate(gradients):
            flat = gradient.flatten()
            messages.append(reference.ternary(flat, draws(rank, step, name, len(flat))))
        return sum(messages) / world_size

    assert_close(trained(world_size, 'terngrad'), plain(world_size, rule, clamped))


@every_world_size
def test_natural_compression(world_size):
    def rule(name, step, gradients):
        messages = [
            reference.natural(gradient.flatten(), draws(rank, step, name, gradient.numel()))
            for rank, gradient in enumerate(gradients)
        ]
        return sum(messages) / world_size

    assert_close(trained(world_size, 'natural'), plain(world_size, rule))


@every_world_size
def test_one_bit_sgd(world_size):
    errors: dict[tuple[str, int], Tensor] = {}

    def rule(name, step, gradients):
        messages = []
        for rank, gradient in enumerate(gradients):
            p = gradient.double() + errors.get((name, rank), 0.0)
            messages.append(reference.row_means(p, tuple(gradient.shape)).view(gradient.shape))
            errors[name, rank] = p - messages[-1]
        return (sum(messages) / world_size).float()

    assert_close(trained(world_size, 'one-bit-sgd'), plain(world_size, rule))


@every_world_size
@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_signum(world_size, momentum):
    momenta: dict[tuple[str, int], Tensor] = {}

    def rule(name, step, gradients):
        for rank, gradient in enumerate(gradients):
            momenta[name, rank] = momentum * momenta.get((name, rank), 0.0) + gradient.flatten()
        of_ranks = [momenta[name, rank] for rank in range(world_size)]
        return reference.majority_vote(of_ranks, reference.as_is)

    ours = trained(world_size, 'signum', momentum, rules=dgc.LayerRules())
    assert_close(ours[:2], plain(world_size, rule)[:2])  # vectors are uncompressed: momentum SGD


def test_signum_without_momentum_is_sign_sgd():
    ours, theirs = trained(3, 'signum'), trained(3, 'sign-sgd')
    assert all(map(torch.equal, ours, theirs))


def test_signum_has_no_nesterov_form():
    named = parameters()
    with pytest.raises(ValueError, match='LocalMomentum has no Nesterov form'):
        wrap(named, dgc.ALGORITHMS['signum'].composition(), momentum=0.9, nesterov=True)


@every_world_size
def test_threshold_v(world_size):
    """With a residual, as in the papers: what waits below the threshold adds up until it exceeds
    it."""
    residuals: dict[tuple[str, int], Tensor] = {}

    def rule(name, step, gradients):
        total = torch.zeros_like(gradients[0])
        for rank, gradient in enumerate(gradients):
            v = gradient + residuals.get((name, rank), torch.zeros_like(gradient))
            sent = v.where(v.abs() >= 3.0, 0.0)
            residuals[name, rank] = v - sent
            total += sent
        return total / world_size

    settings = {'compress_ratio': 0.9, 'threshold': 3.0, 'memory': dgc.memory.Residual()}
    ours = trained(world_size, 'threshold-v', **settings, always_sparse=True)
    assert_close(ours, plain(world_size, rule))


@pytest.mark.parametrize('world_size', [2, 4])
def test_threshold_v_sends_what_it_found_and_not_its_budget(world_size):
    def worker(engine):
        named = parameters()
        settings = {'compress_ratio': 0.2, 'threshold': 4.0, 'indices': 'int32'}
        composition = dgc.ALGORITHMS['threshold-v'].composition(planner=PerTensor(), **settings)
        optimizer = wrap(named, composition, engine)
        watched = []
        optimizer.reducer.watchers['test'] = lambda bucket, selected: watched.append(
            (bucket, selected)
        )
        train(optimizer, named, 1, engine.rank)
        counts = [len(sent.values) for bucket, sent in watched if bucket.density is not None]
        return counts, optimizer.progress.sent - dense_bytes(watched, engine.size)

    found = dgc.simulate(world_size, worker)
    longest = [max(counts) for counts in zip(*(counts for counts, _ in found), strict=True)]
    messages = sum(8 + -(-(32 + 8 * count) // 8) * 8 for count in longest)
    assert [sent for _, sent in found] == [(world_size - 1) * messages] * world_size
    assert sum(longest) < 144  # of a budget of 288 elements


def dense_bytes(watched, world_size: int) -> int:
    """What a rank sends for the uncompressed buckets."""
    numels = [bucket.numel for bucket, _ in watched if bucket.density is None]
    return sum(round(8 * numel * (world_size - 1) / world_size) for numel in numels)
