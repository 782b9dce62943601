"""Every optimizer of torch behind a residual: which gradients it gets, and what is saved."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pytest
import torch
from dgc_helpers import exact, parameters, train, values
from torch import Tensor, nn
from torch.optim import Optimizer

import dgc
from dgc.compressors import TopK
from dgc.exchanges import AllGather
from dgc.memory import MomentumCorrection, Residual
from dgc.optim.closures import needs_closure
from dgc.planner import PerTensor
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule

RANKS, STEPS, SAMPLES = 2, 3, 16  # samples: of a rank and step


def muon_and_adamw(network: nn.Module) -> list[Optimizer]:
    """Muon for matrices, which are all that it takes, and AdamW for the rest."""
    matrices = [p for p in network.parameters() if p.dim() == 2]
    others = [p for p in network.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]


def one(kind: type[Optimizer], **settings) -> Callable[[nn.Module], list[Optimizer]]:
    return lambda network: [kind(network.parameters(), **settings)]


OPTIMIZERS = {
    'SGD': one(torch.optim.SGD, lr=0.1),
    'SGD, momentum': one(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    'SGD, Nesterov': one(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    'ASGD': one(torch.optim.ASGD, lr=0.1),
    'Adagrad': one(torch.optim.Adagrad, lr=0.05),
    'Adadelta': one(torch.optim.Adadelta),
    'Adam': one(torch.optim.Adam, lr=0.01),
    'Adam, amsgrad': one(torch.optim.Adam, lr=0.01, amsgrad=True),
    'AdamW': one(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    'Adamax': one(torch.optim.Adamax, lr=0.01),
    'NAdam': one(torch.optim.NAdam, lr=0.01),
    'RAdam': one(torch.optim.RAdam, lr=0.01),
    'RMSprop': one(torch.optim.RMSprop, lr=0.01),
    'RMSprop, momentum': one(torch.optim.RMSprop, lr=0.01, momentum=0.9),
    'Rprop': one(torch.optim.Rprop, lr=0.01),
    'Adafactor': one(torch.optim.Adafactor, lr=0.1),
    'Muon and AdamW': muon_and_adamw,
    'LBFGS': one(torch.optim.LBFGS, lr=0.5, max_iter=3),
    'LBFGS, line search': one(torch.optim.LBFGS, max_iter=3, line_search_fn='strong_wolfe'),
}  # fmt: skip
APPLIES_MOMENTUM = {'SGD, momentum', 'SGD, Nesterov', 'RMSprop, momentum', 'Muon and AdamW'}
every_optimizer = pytest.mark.parametrize('name', OPTIMIZERS)
pytestmark = pytest.mark.filterwarnings('ignore:LBFGS compares the gradients')


def composition(density: float, memory: dgc.memory.Memory | None = None) -> dgc.Composition:
    """Top-k of every parameter; at a density of 1 all elements are sent, as a sparse message."""
    return dgc.Composition(
        memory=memory or Residual(),
        compressor=TopK(),
        exchange=AllGather(),
        schedule=DensitySchedule(density),
        rules=LayerRules(min_dims=0),
        planner=PerTensor(),
        always_sparse=True,
    )


def network_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 * rank + step)
    inputs = torch.randn(SAMPLES, 12, generator=draw)
    return inputs, inputs[:, :3].tanh() + torch.randn(SAMPLES, 3, generator=draw) / 10


class Loop:
    """A training loop: the same for plain and wrapped optimizers."""

    def __init__(self, network: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self.network, self.optimizers = network, optimizers
        self.local: list[list[Tensor]] = []  # gradients after each backward pass

    def take(self, step: int, *batches: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = map(torch.cat, zip(*batches, strict=True))

        def closure() -> Tensor:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = (self.network(inputs) - targets).square().mean()
            loss.backward()
            self.local.append(copied(p.grad for p in self.network.parameters()))
            return loss

        if needs_closure(getattr(self.optimizers[0], 'optimizer', self.optimizers[0])):
            return self.optimizers[0].step(closure)
        loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    @property
    def values(self) -> list[Tensor]:
        return copied(self.network.parameters())


def copied(tensors) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def wrapped(name: str, parts: Callable[[], dgc.Composition], engine: dgc.Engine) -> Loop:
    network = network_of()
    named = list(network.named_parameters())
    optimizers = [
        dgc.DistributedOptimizer(each, named, parts(), engine) for each in OPTIMIZERS[name](network)
    ]
    return Loop(network, optimizers)


class Ran(NamedTuple):
    """What became of a rank's loop."""

    loop: Loop
    losses: list[float]
    means: list[list[Tensor]]


def run(
    name: str, parts: Callable[[], dgc.Composition], engine: dgc.Engine, steps: int = STEPS
) -> Ran:
    """Train as one rank; note the mean gradient of each exchange, in the order of parameters."""
    loop, means = wrapped(name, parts, engine), []

    def noted(synchronize: Callable[[], bool]) -> bool:
        usable = synchronize()
        means.append(copied(p.grad for p in loop.network.parameters()))
        return usable

    last = loop.optimizers[-1]  # all have synchronized after it
    last.synchronize = partial(noted, last.synchronize)
    losses = [loop.take(step, batch(engine.rank, step)).item() for step in range(steps)]
    return Ran(loop, losses, means)


@every_optimizer
def test_with_all_elements_sent_it_is_the_optimizer_on_the_whole_batch(name):
    network = network_of()
    plain = Loop(network, OPTIMIZERS[name](network))
    losses = [
        plain.take(step, *(batch(rank, step) for rank in range(RANKS))).item()
        for step in range(STEPS)
    ]
    ran = dgc.simulate(RANKS, partial(run, name, partial(composition, 1.0)))
    assert all(map(torch.equal, ran[0].loop.values, ran[1].loop.values))
    torch.testing.assert_close(ran[0].loop.values, plain.values, rtol=0, atol=1e-5)
    assert [sum(pair) / RANKS for pair in zip(*(each.losses for each in ran), strict=True)] == (
        pytest.approx(losses, abs=1e-5)
    )


@every_optimizer
def test_means_and_residuals_are_all_gradients(name):
    assert_conserving(name, partial(composition, 0.05))


def assert_conserving(name: str, parts: Callable[[], dgc.Composition], steps: int = STEPS) -> None:
    """Train two ranks; what they applied and kept must be the mean of all gradients."""
    ran = dgc.simulate(RANKS, partial(run, name, parts, steps=steps))
    assert all(map(torch.equal, ran[0].loop.values, ran[1].loop.values))
    owed = mean_over_ranks([total(each.loop.local) for each in ran])
    held = mean_over_ranks([residuals(each.loop) for each in ran])
    assert any(bool(each.any()) for each in held)
    for mean, kept, gradient in zip(total(ran[0].means), held, owed, strict=True):
        torch.testing.assert_close(mean + kept, gradient, rtol=1e-6, atol=1e-6)


def total(exchanges: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The sum over exchanges, by parameter."""
    return [sum(each) for each in zip(*exchanges, strict=True)]


def mean_over_ranks(ranks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [each / RANKS for each in total(ranks)]


def residuals(loop: Loop) -> list[Tensor]:
    """What a rank has not sent, in the order of parameters."""
    found = {
        name: view
        for optimizer in loop.optimizers
        for bucket in optimizer.buckets
        for name, view in bucket.views(bucket.buffers['residual'])
    }
    return [found[name] for name, _ in loop.network.named_parameters()]


@every_optimizer
def test_a_saved_state_changes_nothing(name):
    assert_resuming(name, partial(composition, 0.1))


def assert_resuming(name: str, parts: Callable[[], dgc.Composition]) -> None:
    """Train two ranks, and two more from their files; the parameters must be the same bits."""

    def worker(engine: dgc.Engine) -> tuple[list[Tensor], list[Tensor]]:
        first = run(name, parts, engine).loop
        file = io.BytesIO()
        states = [optimizer.state_dict() for optimizer in first.optimizers]
        torch.save({'model': first.network.state_dict(), 'optimizers': states}, file)
        second = wrapped(name, parts, engine)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        second.network.load_state_dict(saved['model'])
        for optimizer, state in zip(second.optimizers, saved['optimizers'], strict=True):
            optimizer.load_state_dict(state)
            assert optimizer.steps == STEPS
        for loop in (first, second):
            for step in range(STEPS, STEPS + 2):
                loop.take(step, batch(engine.rank, step))
        return first.values, second.values

    for first, second in dgc.simulate(RANKS, worker):
        assert all(map(torch.equal, first, second))


class TestWarmUpOverSteps:
    """The default compressor, at a density that changes in every step."""

    def falling(self, always_sparse: bool) -> dgc.Composition:
        return dgc.deep_gradient_compression(
            0.05,
            warmup_steps=STEPS + 1,
            memory=Residual(),
            rules=LayerRules(min_dims=0),
            always_sparse=always_sparse,
        )

    @pytest.mark.parametrize('always_sparse', [False, True])
    @pytest.mark.parametrize('name', ['AdamW', 'LBFGS'])
    def test_it_loses_nothing(self, name, always_sparse):
        assert_conserving(name, partial(self.falling, always_sparse), steps=STEPS + 3)

    def test_it_goes_on_from_a_saved_state(self):
        assert_resuming('AdamW', partial(self.falling, True))

    def test_a_hook_needs_no_length_of_an_epoch_for_it(self):
        assert dgc.hooks.CompressionState(self.falling(False)).steps == 0
        with pytest.raises(ValueError, match='needs steps_per_epoch: give it, or set warmup_steps'):
            dgc.hooks.CompressionState(dgc.deep_gradient_compression(0.05, warmup_epochs=2))


@every_optimizer
def test_the_memory_of_the_published_algorithm_is_a_residual_or_refused(name):
    """The optimizer's own momentum is applied once: none is left to MomentumCorrection."""
    corrected = partial(composition, 0.1, MomentumCorrection())
    if name in APPLIES_MOMENTUM:
        with pytest.raises(ValueError, match=r'MomentumCorrection holds the momentum and .* again'):
            wrapped(name, corrected, dgc.engines.LocalEngine())
        return
    ours = run(name, corrected, dgc.engines.LocalEngine()).loop.values
    theirs = run(name, partial(composition, 0.1), dgc.engines.LocalEngine()).loop.values
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(
    ('name', 'remedy'),
    [('SGD, momentum', 'use dgc.DGCSGD'), ('RMSprop, momentum', 'use the memory Residual')],
)
def test_a_refused_momentum_names_what_fits_the_optimizer(name, remedy):
    with pytest.raises(ValueError, match=remedy):
        wrapped(name, partial(composition, 0.1, MomentumCorrection()), dgc.engines.LocalEngine())


@pytest.mark.parametrize('name', ['Adam', 'AdamW', 'Adamax', 'NAdam', 'RAdam'])
def test_a_first_moment_on_top_of_demo_is_refused(name):
    with pytest.raises(ValueError, match=rf'{name} would apply another \(beta1=0.9\)'):
        wrapped(name, dgc.ALGORITHMS['demo'].make, dgc.engines.LocalEngine())


class TestSchedulersOfMomentum:
    """OneCycleLR changes the momentum too, by default."""

    def cycled(self, optimizer: Optimizer) -> torch.optim.lr_scheduler.OneCycleLR:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)

    @pytest.mark.parametrize(
        ('kind', 'parts', 'reason'),
        [
            (torch.optim.SGD, exact, 'MomentumCorrection holds the momentum and SGD would apply'),
            (torch.optim.RMSprop, exact, 'MomentumCorrection holds the momentum and RMSprop'),
            (dgc.DGCSGD, partial(exact, memory=Residual()), 'DGCSGD leaves momentum to the memory'),
            (torch.optim.SGD, dgc.ALGORITHMS['demo'].make, 'DecoupledMomentum has a momentum of'),
        ],
    )
    def test_a_momentum_that_comes_later_is_refused_at_the_step(self, kind, parts, reason):
        named = parameters()
        inner = kind([p for _, p in named], lr=0.1)
        optimizer = dgc.DistributedOptimizer(inner, named, parts())
        train(optimizer, named, 1)
        before = values(named)
        self.cycled(optimizer)
        with pytest.raises(ValueError, match=reason):
            train(optimizer, named, 1)
        assert all(map(torch.equal, values(named), before))

    def test_an_outer_momentum_that_comes_later_is_refused_at_the_outer_step(self):
        named = parameters()
        inner, outer = (torch.optim.SGD([p for _, p in named], lr=0.1) for _ in range(2))
        optimizer = dgc.LocalSteps(inner, outer, named, exact(), every=2)
        self.cycled(outer)
        train(optimizer, named, 1)
        with pytest.raises(ValueError, match='MomentumCorrection holds the momentum and SGD would'):
            train(optimizer, named, 1)

    def test_one_that_is_applied_once_is_used_as_it_is(self):
        def trained(kind, parts):
            named = parameters()
            inner = kind([p for _, p in named], lr=0.1, momentum=0.9)
            optimizer = dgc.DistributedOptimizer(inner, named, parts())
            scheduler = self.cycled(optimizer)
            for step in range(4):
                train(optimizer, named, [step])
                scheduler.step()
            return values(named)

        plain = trained(torch.optim.SGD, dgc.dense)
        corrected = trained(dgc.DGCSGD, partial(dgc.deep_gradient_compression, 1))
        torch.testing.assert_close(corrected, plain)


def lbfgs(named) -> torch.optim.LBFGS:
    return torch.optim.LBFGS([p for _, p in named])


class TestClosures:
    """LBFGS compares losses and gradients within a step."""

    def test_optimizers_that_need_one_are_known(self):
        named = parameters()
        assert needs_closure(lbfgs(named))
        assert not needs_closure(torch.optim.AdamW([p for _, p in named]))

    @pytest.mark.parametrize('name', ['LBFGS', 'LBFGS, line search'])
    def test_an_evaluation_is_an_exchange_and_a_step_is_one_of_the_schedule(self, name):
        parts = partial(exact, 0.1, memory=Residual(), warmup_steps=STEPS + 2)
        ran = dgc.simulate(RANKS, partial(run, name, parts))
        (optimizer,) = ran[0].loop.optimizers
        assert optimizer.steps == STEPS
        assert optimizer.progress.steps == len(ran[0].loop.local) > 2 * STEPS
        assert len(ran[1].loop.local) == len(ran[0].loop.local)
        density = optimizer.buckets[0].density
        assert density == DensitySchedule(0.1, warmup_steps=STEPS + 2).at(STEPS, 1)

    def test_all_ranks_get_the_mean_loss(self):
        def worker(engine: dgc.Engine) -> tuple[float, float]:
            loop = wrapped('LBFGS', dgc.dense, engine)
            inputs, targets = batch(engine.rank, 0)
            own = (loop.network(inputs) - targets).square().mean().item()
            return own, float(loop.take(0, (inputs, targets)))

        (one_rank, mean), (other, again) = dgc.simulate(RANKS, worker)
        assert one_rank != pytest.approx(other)
        assert mean == again == pytest.approx((one_rank + other) / 2)

    def test_a_step_without_one_is_refused(self):
        named = parameters()
        optimizer = dgc.DistributedOptimizer(lbfgs(named), named, dgc.dense())
        with pytest.raises(TypeError, match='LBFGS needs a closure that computes loss and grad'):
            optimizer.step()

    def test_skip_synchronize_is_refused(self):
        named = parameters()
        optimizer = dgc.DistributedOptimizer(lbfgs(named), named, dgc.dense())
        with (
            optimizer.skip_synchronize(),
            pytest.raises(RuntimeError, match='LBFGS within skip_synchronize'),
        ):
            optimizer.step(lambda: 0.0)

    def test_compression_is_warned_of(self):
        named = parameters()
        with pytest.warns(UserWarning, match='LBFGS compares the gradients .* may stall'):
            dgc.DistributedOptimizer(lbfgs(named), named, exact(memory=Residual()))

    @pytest.mark.filterwarnings('error')
    def test_without_compression_nothing_is_warned_of(self):
        named = parameters()
        dgc.DistributedOptimizer(lbfgs(named), named, dgc.dense())

    def test_what_cannot_serve_it_is_refused(self):
        named = parameters()
        outer = torch.optim.SGD([p for _, p in named], lr=1.0)
        for make, reason in {
            lambda: dgc.DistributedOptimizer(
                lbfgs(named), named, dgc.Composition(nonfinite='skip')
            ): "nonfinite='skip' skips whole steps, and LBFGS",
            lambda: dgc.hooks.CompressionState(
                dgc.dense(), lbfgs(named)
            ): 'LBFGS evaluates a closure .* each rank its own loss: use DistributedOptimizer',
            lambda: dgc.LocalSteps(
                outer, lbfgs(named), named
            ): 'LBFGS evaluates a closure .* an outer step has none',
        }.items():
            with pytest.raises(ValueError, match=reason):
                make()
