"""What releases do and these algorithms do otherwise, as settings, against plain formulas."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from dgc_helpers import keep_count, loss
from ps_helpers import World
from torch import Tensor, nn

import dgc
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm, ClipByValue
from dgc.composition import Composition
from dgc.compressors import TopK
from dgc.exchanges.team_gather import AdaptiveSize, Bruck
from dgc.memory import (
    AveragedMomentum,
    DecoupledMomentum,
    FirstMoment,
    LocalMomentum,
    MeanMomentum,
    MomentumCorrection,
    NoMemory,
    Residual,
    SAMomentum,
)
from dgc.parameter_server import Changed, dual_way
from dgc.planner import Whole
from dgc.rules import LayerRules

RANKS, N, RATE, MOMENTUM, DENSE = 2, 40, 0.1, 0.9, 3
LIMIT = 1.0  # of clipping; most gradients exceed it
DENSITY = 0.1
always_sparse = partial(dgc.deep_gradient_compression, always_sparse=True)


def gradients(step: int) -> Tensor:
    """[RANKS, N]"""
    return torch.randn(RANKS, N, generator=torch.Generator().manual_seed(step))


def train(composition, steps: int, nesterov: bool = False):
    """The parameter after each step, and the bucket's buffers after the last, of each rank."""

    def worker(engine):
        model = nn.ParameterList([nn.Parameter(torch.zeros(4, N // 4))])
        sgd = dgc.DGCSGD(model.parameters(), lr=RATE, momentum=MOMENTUM, nesterov=nesterov)
        optimizer = dgc.DistributedOptimizer(
            sgd, model.named_parameters(), composition(), engine, steps_per_epoch=1
        )
        path = []
        for step in range(steps):
            (model[0].flatten() * gradients(step)[engine.rank]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            path.append(model[0].detach().flatten().clone())
        buffers = optimizer.buckets[0].buffers
        return path, {name: flat.clone() for name, flat in buffers.items()}

    return dgc.simulate(RANKS, worker)


def release(steps: int, nesterov: bool, clip=lambda gradient, limit: gradient):
    """The release in plain tensors: DENSE uncompressed steps, then top-k of each rank.

    ``clip`` bounds the mean gradient of an uncompressed step, and each rank's of a later one.
    """
    weight, path = torch.zeros(N), []
    u, v = torch.zeros(RANKS, N), torch.zeros(RANKS, N)
    for step in range(steps):
        g = gradients(step)
        if step < DENSE:
            mean = clip(g.mean(0), LIMIT)
            if nesterov:
                u[:] = (u[0] + mean) * MOMENTUM
                applied = u[0] + mean
            else:
                u[:] = u[0] * MOMENTUM + mean
                applied = u[0]
        else:
            g = torch.stack([clip(own, LIMIT * RANKS**0.5) for own in g])
            if nesterov:
                u = (u + g) * MOMENTUM
                v = v + u + g
            else:
                u = u * MOMENTUM + g
                v = v + u
            applied = torch.zeros(N)
            for rank in range(RANKS):
                top = v[rank].abs().topk(int(N * DENSITY)).indices
                applied[top] += v[rank][top] / RANKS
                v[rank][top] = 0
                u[rank][top] = 0
        weight = weight - RATE * applied
        path.append(weight)
    return path, u, v


def warm(**settings):
    return always_sparse(
        DENSITY, warmup_epochs=DENSE, warmup_coeff=[1.0] * DENSE, compressor=TopK(), **settings
    )


@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('steps', [DENSE, DENSE + 4])
def test_the_dense_phase_has_the_momentum_of_the_mean(nesterov, steps):
    expected, u, v = release(steps, nesterov)
    for rank, (path, buffers) in enumerate(
        train(lambda: warm(memory=MeanMomentum()), steps, nesterov)
    ):
        for ours, theirs in zip(path, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(buffers['momentum'], u[rank], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(buffers['velocity'], v[rank], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('steps', [DENSE, DENSE + 4])
def test_the_mean_gradient_is_clipped_before_the_momentum(nesterov, steps):
    clipping = ClipByNorm(LIMIT, dense_after_mean=True)
    expected, u, _ = release(steps, nesterov, lambda g, limit: g * min(1, limit / g.norm()))
    free, _, _ = release(steps, nesterov)
    assert not torch.allclose(expected[-1], free[-1], rtol=0.1)
    made = train(lambda: warm(memory=MeanMomentum(), gradient_clipping=clipping), steps, nesterov)
    for rank, (path, buffers) in enumerate(made):
        for ours, theirs in zip(path, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(buffers['momentum'], u[rank], rtol=1e-4, atol=1e-5)


SEND_MOMENTA = (
    *(MomentumCorrection, LocalMomentum, FirstMoment, SAMomentum),
    *(AveragedMomentum, DecoupledMomentum),
)


@pytest.mark.parametrize('memory', SEND_MOMENTA)
def test_a_mean_of_momenta_is_not_clipped_as_a_gradient(memory):
    clipping = ClipByNorm(LIMIT, dense_after_mean=True)
    with pytest.raises(ValueError, match=f'dense_after_mean clips.*{memory.__name__} sends mom'):
        Composition(memory=memory(), clipping=clipping)


@pytest.mark.parametrize('memory', [NoMemory, Residual, MeanMomentum])
def test_remedies_for_it_are_accepted(memory):
    Composition(memory=memory(), clipping=ClipByNorm(LIMIT, dense_after_mean=True))


def test_a_parameter_server_has_no_mean_to_clip():
    with pytest.raises(ValueError, match='dense_after_mean clips the mean gradient, and workers'):
        dual_way(0.1, gradient_clipping=ClipByNorm(LIMIT, dense_after_mean=True))


def test_each_ranks_momentum_gives_the_same_until_it_is_compressed():
    own = train(lambda: warm(memory=MomentumCorrection()), DENSE + 4)[0][0]
    mean = train(lambda: warm(memory=MeanMomentum()), DENSE + 4)[0][0]
    for step, (one, other) in enumerate(zip(own, mean, strict=True)):
        assert torch.allclose(one, other, atol=1e-6) == (step < DENSE), step


def test_what_is_left_of_a_sparse_phase_is_sent():
    composition = partial(
        always_sparse, 1.0, warmup_epochs=2, warmup_coeff=[DENSITY, DENSITY],
        compressor=TopK(), memory=MeanMomentum(),
    )  # fmt: skip
    _, buffers = train(composition, 2)[0]
    assert buffers['velocity'].any()
    _, buffers = train(composition, 3)[0]
    assert not buffers['velocity'].any()


def test_a_dense_bucket_is_clipped_after_the_mean():
    mean = gradients(0).mean(0)
    assert mean.norm() > 1
    for make, clipped in (
        (ClipByNorm, mean / mean.norm()),
        (ClipByValue, mean.clamp(-1.0, 1.0)),
    ):
        composition = lambda make=make: dgc.dense(make(1.0, dense_after_mean=True))  # noqa: E731
        (after,), _ = train_sgd(composition)
        torch.testing.assert_close(after, -RATE * clipped, rtol=1e-4, atol=1e-6)
    before = gradients(0)
    before = before / (before.norm(dim=1, keepdim=True) / RANKS**0.5)
    (after,), _ = train_sgd(lambda: dgc.dense(ClipByNorm(1.0)))
    torch.testing.assert_close(after, -RATE * before.mean(0), rtol=1e-4, atol=1e-6)


def train_sgd(composition):
    """One step of plain SGD on each rank; that of the first."""

    def worker(engine):
        model = nn.ParameterList([nn.Parameter(torch.zeros(4, N // 4))])
        sgd = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizer = dgc.DistributedOptimizer(sgd, model.named_parameters(), composition(), engine)
        (model[0].flatten() * gradients(0)[engine.rank]).sum().backward()
        optimizer.step()
        return [model[0].detach().flatten().clone()], None

    first, second = dgc.simulate(RANKS, worker)
    assert first[0][0].equal(second[0][0])
    return first


def test_a_compressed_bucket_is_clipped_before_all_the_same():
    plain = train(lambda: warm(gradient_clipping=ClipByNorm(1.0)), DENSE + 2)[0]
    clipping = ClipByNorm(1.0, dense_after_mean=True)
    late = train(lambda: warm(memory=MeanMomentum(), gradient_clipping=clipping), DENSE + 2)
    path, buffers = late[0]
    assert not torch.allclose(path[0], plain[0][0])
    for rank in range(RANKS):  # the last gradient enters a rank's momentum clipped to 1·√2
        g = gradients(DENSE + 1)[rank]
        assert g.norm() > RANKS**0.5
    assert buffers['momentum'].norm() < 20


@pytest.mark.parametrize('kind', [ClipByModelNorm, ClipByGlobalNorm])
def test_clipping_of_all_gradients_together_is_before_the_mean_only(kind):
    with pytest.raises(ValueError, match=f'{kind.__name__} clips all gradients together'):
        kind(1.0, dense_after_mean=True)


# ---------------------------------------------------------------- DGS


def one_bucket(**settings):
    """A parameter server whose worker sends the top 10 % of all parameters together."""
    return dual_way(
        0.1, memory=Residual(), compressor=TopK(), secondary=Changed(), planner=Whole(),
        rules=LayerRules(min_dims=0), always_sparse=True, **settings,
    )  # fmt: skip


def flat(worker) -> Tensor:
    return torch.cat([p.detach().flatten() for _, p in worker.named])


@pytest.mark.parametrize('when_sent', [False, True])
def test_the_rate_is_that_of_the_gradient_or_of_the_sending(when_sent):
    world = World(lambda: one_bucket(rate_when_sent=when_sent), slots=1, momentum=0.0, lr=0.2)
    worker = world.join()
    residual = torch.zeros_like(flat(worker))
    for step, rate in enumerate([0.2, 0.05, 0.1, 0.2]):
        worker.optimizer.param_groups[0]['lr'] = rate
        before = flat(worker)
        worker.optimizer.zero_grad()
        loss(worker.named, 0, step).backward()
        gradient = torch.cat([p.grad.flatten() for _, p in worker.named])
        worker.optimizer.step()
        residual += gradient if when_sent else rate * gradient
        top = residual.abs().topk(keep_count(len(residual), 0.1)).indices
        sent = torch.zeros_like(residual)
        sent[top] = residual[top] * (rate if when_sent else 1.0)
        residual[top] = 0
        torch.testing.assert_close(flat(worker), before - sent, rtol=1e-5, atol=1e-6)


def test_rounding_returns_to_a_residual_that_has_no_rate():
    """A constant rate of 2: what is sent and what is kept are the same as with the rate before."""
    paths = []
    for when_sent in (False, True):
        make = lambda when_sent=when_sent: one_bucket(  # noqa: E731
            rate_when_sent=when_sent, values='fp16'
        )
        worker = World(make, slots=1, momentum=0.0, lr=2.0).join()
        for _ in range(4):
            worker.step()
        paths.append(flat(worker))
    torch.testing.assert_close(*paths, rtol=1e-4, atol=1e-5)


def test_rates_that_differ_cannot_be_applied_when_sending():
    world = World(lambda: one_bucket(rate_when_sent=True), slots=1, momentum=0.0)
    worker = world.join()
    sgd = torch.optim.SGD([{'params': [p], 'lr': 0.1 + i} for i, (_, p) in enumerate(worker.named)])
    with pytest.raises(ValueError, match='rate_when_sent needs one learning rate'):
        type(worker.optimizer)(sgd, worker.named, [], world.make(), None)


def test_the_density_follows_the_learning_rate():
    world = World(lambda: one_bucket(ratio_follows_rate=True), slots=1, momentum=0.0, lr=0.2)
    worker = world.join()
    total = len(flat(worker))
    for rate, density in ((0.2, 0.1), (0.1, 0.05), (0.05, 0.025), (0.2, 0.1), (0.0, 1 / total)):
        worker.optimizer.param_groups[0]['lr'] = rate
        before = worker.optimizer.progress.sent_elements
        worker.step()
        sent = worker.optimizer.progress.sent_elements - before
        assert sent == keep_count(total, density), rate


@pytest.mark.parametrize('name', ['ratio_follows_rate', 'rate_when_sent'])
def test_other_values_are_refused(name):
    with pytest.raises(ValueError, match=f'{name} must be True or False, got 0'):
        dual_way(**{name: 0.5})


# ---------------------------------------------------------------- SparDL


@pytest.mark.parametrize(('start', 'first'), [(1.0, 40), (0.5, 20), (0.0, 10)])
def test_bruck_begins_where_it_is_said_to(start, first):
    size = AdaptiveSize({}, start)
    assert size.between(40, teams=4) == first
    size.adapt(merged=30, limit=40)
    assert size.between(40, teams=4) == min(first + 1, 40)


def test_bruck_begins_between_none_and_all():
    with pytest.raises(ValueError, match=r'start must be from 0 to 1, got 1\.5'):
        Bruck(1.5)
