"""Scaled losses, autocast, and parameters of half precision: docs/mixed-precision.md."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from dgc_helpers import exact, kept_by, loss, parameters, set_gradients, train, values, wrap
from state_helpers import assert_same
from test_nonfinite import COMPOSITIONS, STATEFUL
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

import dgc
from dgc.compressors import TopK
from dgc.engines import LocalEngine
from dgc.memory import Residual
from dgc.wrapper import Wrapper

ROWS = COMPOSITIONS | STATEFUL
FEW = {name: ROWS[name] for name in ('dense', 'dgc', 'gtopk')}
WITHOUT = ''  # no overflow


def scaler(scale: float = 1024.0, growth: float = 2.0, **settings) -> GradScaler:
    """One whose scale changes after every step."""
    return GradScaler('cpu', scale, growth, growth_interval=1, **settings)


def backward(given: Tensor, named, overflow: str = WITHOUT) -> None:
    """A backward pass, in which one element of the gradient of ``overflow`` is infinite."""
    if not overflow:
        given.backward()
        return

    def spoil(gradient):
        spoilt = gradient.clone()
        spoilt.view(-1)[-1] = torch.inf
        return spoilt

    hook = dict(named)[overflow].register_hook(spoil)
    given.backward()
    hook.remove()


class Loop:
    """A step of PyTorch's documented loops; without ``optimizer.scaler``, of plain ones."""

    def __init__(self, passes: int = 1, paused: int = 0, limit: float | None = None) -> None:
        self.passes, self.paused, self.limit = passes, paused, limit

    def step(self, optimizer: dgc.DistributedOptimizer, named, rank, step, overflow=WITHOUT):
        """A step of ``passes + paused`` backward passes, clipped to ``limit``."""
        scaler = optimizer.scaler
        optimizer.zero_grad()
        for each in range(self.passes + self.paused):
            value = loss(named, rank, 10 * step + each)
            value = value if scaler is None else scaler.scale(value)
            if each < self.paused:
                with optimizer.no_sync():
                    backward(value, named, overflow)
            else:
                backward(value, named, overflow)
        if self.limit is not None:
            if scaler is None:
                optimizer.synchronize()
            else:
                scaler.unscale_(optimizer)
            clip_grad_norm_([p for _, p in named], self.limit)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


LOOPS = {
    'as written': Loop(),
    'clipped': Loop(limit=1.0),
    'accumulated': Loop(passes=2),
    'accumulated, clipped': Loop(passes=2, limit=1.0),
    'no_sync': Loop(paused=1),
}


def trained(
    make: Callable[..., dgc.Composition],
    loop: Loop,
    steps: range | list[int],
    overflow: Callable[[int, int], str] = lambda rank, step: WITHOUT,
    scales: bool = True,
    ranks: int = 2,
) -> list[tuple]:
    """Every rank's parameters and memories after ``steps``, and its scale after each."""

    def worker(engine):
        named = parameters()
        optimizer = wrap(
            named, make(nonfinite='skip'), engine, momentum=0.9,
            batches_per_step=loop.passes, scaler=scaler() if scales else None,
        )  # fmt: skip
        history = []
        for step in steps:
            loop.step(optimizer, named, engine.rank, step, overflow(engine.rank, step))
            history.append(scales and optimizer.scaler.get_scale())
        return values(named), optimizer.reducer.state_dict(), history

    return dgc.simulate(ranks, worker)


class TestDocumentedLoops:
    """Scales are powers of two here, so that scaling changes no bit."""

    @pytest.mark.parametrize('make', ROWS.values(), ids=ROWS)
    def test_they_do_as_without_scaling_but_for_overflows(self, make):
        """The row's parts see unscaled gradients, and no part keeps a trace of an overflow."""
        scaled = trained(
            make, LOOPS['as written'], range(5),
            lambda rank, step: 'wide.weight' if (rank, step) == (1, 2) else WITHOUT, ranks=4,
        )  # fmt: skip
        plain = trained(make, LOOPS['as written'], [0, 1, 3, 4], scales=False, ranks=4)
        for ours, theirs in zip(scaled, plain, strict=True):
            assert_same(ours[:2], theirs[:2])
            assert ours[2] == [2048, 4096, 2048, 4096, 8192]

    @pytest.mark.parametrize('loop', LOOPS.values(), ids=LOOPS)
    @pytest.mark.parametrize('make', FEW.values(), ids=FEW)
    def test_each_loop_does_as_without_scaling(self, make, loop):
        scaled = trained(
            make, loop, range(4), lambda rank, step: 'bias' if (rank, step) == (0, 1) else WITHOUT
        )
        plain = trained(make, loop, [0, 2, 3], scales=False)
        for ours, theirs in zip(scaled, plain, strict=True):
            assert_same(ours[:2], theirs[:2])
            assert ours[2] == [2048, 1024, 2048, 4096]

    def test_the_gradient_penalty(self):
        """With autograd.grad of the scaled loss, whose gradients are not sent."""

        def worker(engine):
            named, scale = parameters(), scaler()
            optimizer = wrap(named, dgc.dense(), engine, scaler=scale)
            inputs = [p for _, p in named]
            scaled = torch.autograd.grad(
                scale.scale(loss(named, engine.rank, 0)), inputs, create_graph=True
            )
            norm = sum((g / scale.get_scale()).square().sum() for g in scaled).sqrt()
            scale.scale(loss(named, engine.rank, 0) + norm).backward()
            scale.step(optimizer)
            scale.update()
            return values(named)

        named = parameters()
        sgd = torch.optim.SGD([p for _, p in named], lr=0.1)
        for rank in (0, 1):
            inputs = [p for _, p in named]
            gradients = torch.autograd.grad(loss(named, rank, 0), inputs, create_graph=True)
            norm = sum(g.square().sum() for g in gradients).sqrt()
            ((loss(named, rank, 0) + norm) / 2).backward()
        sgd.step()
        torch.testing.assert_close(dgc.simulate(2, worker)[0], values(named))

    @pytest.mark.parametrize('parts', [1, 2])
    def test_several_optimizers_on_one_scaler(self, parts):
        """Of two, one overflows: it skips, the other steps, and the common scale backs off."""

        def worker(engine):
            named, scale = parameters(), scaler()
            halves = [named[:2], named[2:]]
            optimizers = [wrap(half, exact(), engine, scaler=scale) for half in halves]
            notes = []
            for step in range(3):
                before = values(named)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                value = sum(loss(half, engine.rank, step) for half in halves)
                bad = 'bias' if step == 1 and engine.rank == 1 else WITHOUT
                backward(scale.scale(value), named, bad)
                if parts == 2:
                    scale.unscale_(optimizers[1])
                for optimizer in optimizers:
                    scale.step(optimizer)
                scale.update()
                moved = [not torch.equal(a, b) for a, b in zip(before, values(named), strict=True)]
                notes.append((moved, scale.get_scale()))
            return notes

        both, first = [True] * 4, [True, True, False, False]
        expected = [(both, 2048), (first, 1024), (both, 2048)]
        assert dgc.simulate(2, worker) == [expected, expected]

    def test_a_sparse_gradient(self):
        def worker(engine):
            torch.manual_seed(0)
            net = nn.EmbeddingBag(50, 8, sparse=True, mode='sum')
            sgd, scale = torch.optim.SGD(net.parameters(), lr=0.5), scaler()
            optimizer = dgc.DistributedOptimizer(
                sgd, net.named_parameters(), dgc.dense(), engine, scaler=scale
            )
            for step in range(2):
                optimizer.zero_grad()
                torch.manual_seed(10 * step + engine.rank)
                scale.scale(net(torch.randint(50, (6, 4))).square().mean()).backward()
                scale.step(optimizer)
                scale.update()
            return values(net.named_parameters())

        torch.manual_seed(0)
        net = nn.EmbeddingBag(50, 8, mode='sum')
        sgd = torch.optim.SGD(net.parameters(), lr=0.5)
        for step in range(2):
            sgd.zero_grad()
            for rank in (0, 1):
                torch.manual_seed(10 * step + rank)
                (net(torch.randint(50, (6, 4))).square().mean() / 2).backward()
            sgd.step()
        torch.testing.assert_close(dgc.simulate(2, worker)[0], values(net.named_parameters()))

    def test_a_scaler_may_be_disabled(self):
        def worker(engine):
            results = []
            for loop in (LOOPS['as written'], LOOPS['clipped']):
                named, plain = parameters(), parameters()
                off = scaler(enabled=False)
                optimizer = wrap(named, exact(), engine, scaler=off)
                loop.step(optimizer, named, engine.rank, 0)
                loop.step(wrap(plain, exact(), engine), plain, engine.rank, 0)
                results.append(all(map(torch.equal, values(named), values(plain))))
            return results, optimizer.composition.nonfinite

        assert dgc.simulate(2, worker) == [([True, True], 'stop')] * 2

    def test_with_one_loop_that_knows_horovod(self):
        """``synchronize()`` before ``unscale_`` is no harm."""
        named, plain, scale = parameters(), parameters(), scaler()
        optimizer = wrap(named, exact(), scaler=scale)
        scale.scale(loss(named, 0, 0)).backward()
        assert optimizer.synchronize()
        scale.unscale_(optimizer)
        scale.step(optimizer)
        scale.update()
        train(wrap(plain, exact()), plain, 1)
        assert_same(values(named), values(plain))


def conserved(make, optimizer_of, growth: float, ranks: int) -> float:
    """The largest difference, relative to the largest sum, between what the ranks' gradients add up
    to, and what was applied and is left, with an overflow in step 3 on the last rank."""

    def worker(engine):
        named, scale = parameters(), scaler(1000.0, growth)
        inner = optimizer_of([p for _, p in named])
        optimizer = dgc.DistributedOptimizer(inner, named, make(), engine, scaler=scale)
        given = [torch.zeros(p.shape, dtype=torch.float64) for _, p in named]
        applied = [torch.zeros(p.shape, dtype=torch.float64) for _, p in named]

        def apply(*_):
            for total, (_, parameter) in zip(applied, named, strict=True):
                total.add_(parameter.grad)

        inner.register_step_pre_hook(apply)
        scales = []
        for step in range(8):
            optimizer.zero_grad()
            is_bad = step == 3
            if not is_bad:
                parts = torch.autograd.grad(loss(named, engine.rank, step), [p for _, p in named])
                for total, part in zip(given, parts, strict=True):
                    total.add_(part)
            bad = 'narrow.weight' if is_bad and engine.rank == engine.size - 1 else WITHOUT
            backward(scale.scale(loss(named, engine.rank, step)), named, bad)
            scale.step(optimizer)
            scale.update()
            scales.append(scale.get_scale())
        kept = {}
        for bucket in optimizer.buckets:
            kept |= dict(bucket.spec.views(kept_by(bucket).double()))
        return given, applied, [kept[name] for name, _ in named], scales

    found = dgc.simulate(ranks, worker)
    assert all(scales == found[0][3] for *_, scales in found)
    assert len({a > b for a, b in pairwise(found[0][3])}) == 2  # it grew, and backed off
    differences, largest = [], []
    for index, applied in enumerate(found[0][1]):
        given = sum(rank[0][index] for rank in found) / ranks
        kept = sum(rank[2][index] for rank in found) / ranks
        differences.append(float((given - applied - kept).abs().max()))
        largest.append(float(given.abs().max()))
    return max(differences) / max(largest)


def sgd(parameters_) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters_, lr=0.1)


CONSERVING = {
    'dense': (dgc.dense, sgd),
    'dgc': (exact, lambda p: dgc.DGCSGD(p, lr=0.1)),
    'residual, AdamW': (
        lambda: exact(memory=Residual()),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ),
    'gtopk': (lambda: dgc.ALGORITHMS['gtopk'].make(0.05), sgd),
}


@pytest.mark.parametrize('growth', [2.0, 1.7])
@pytest.mark.parametrize('ranks', [1, 2, 3])
@pytest.mark.parametrize('row', CONSERVING.values(), ids=CONSERVING)
def test_applied_and_kept_are_what_was_given_under_changes_of_scale_and_overflow(
    row, ranks, growth
):
    assert conserved(*row, growth, ranks) < 1e-6


def test_what_waits_is_applied_once_whatever_the_scale_becomes():
    """A gradient of 1 was applied 11.9 times after a change from 1024 to 64."""
    named = [('w', nn.Parameter(torch.zeros(1, 1000)))]
    composition = dgc.deep_gradient_compression(0.001, memory=Residual(), compressor=TopK())
    scale = GradScaler('cpu', 1024.0, growth_interval=1000)
    optimizer = wrap(named, composition, lr=1.0, scaler=scale)
    gradient = torch.zeros(1, 1000)
    gradient[0, :12] = torch.arange(1.0, 13.0)
    for step in range(12):
        optimizer.zero_grad()
        scale.scale((named[0][1] * gradient * (step == 0)).sum()).backward()
        scale.step(optimizer)
        scale.update(64.0 if step == 0 else None)
    torch.testing.assert_close(values(named), [-gradient], rtol=1e-6, atol=0)


class TestOverflow:
    @pytest.mark.parametrize('bad', ['wide.weight', 'scale'])
    @pytest.mark.parametrize('make', FEW.values(), ids=FEW)
    def test_no_rank_s_gradient_is_usable_after_it(self, make, bad):
        """Every scaler must find it: also where the sign of a NaN, or another element, is taken."""

        def worker(engine):
            named, scale = parameters(), scaler()
            optimizer = wrap(named, make(), engine, momentum=0.9, scaler=scale)
            Loop().step(optimizer, named, engine.rank, 0)
            optimizer.zero_grad()
            before = optimizer.reducer.state_dict(), values(named)
            backward(
                scale.scale(loss(named, engine.rank, 1)), named, bad if engine.rank == 2 else ''
            )
            scale.unscale_(optimizer)
            are_nan = [bool(p.grad.isnan().all()) for _, p in named]
            scale.step(optimizer)
            scale.update()
            assert_same((optimizer.reducer.state_dict(), values(named)), before)
            return are_nan, scale.get_scale(), optimizer.steps

        assert dgc.simulate(3, worker) == [([True] * 4, 1024, 2)] * 3

    def test_in_many_steps_from_the_start(self):
        """As with a scale that is much too large at first."""

        def worker(engine):
            named, scale = parameters(), scaler()
            optimizer = wrap(named, exact(), engine, scaler=scale)
            for step in range(4):
                bad = 'bias' if step < 3 and step % engine.size == engine.rank else WITHOUT
                Loop().step(optimizer, named, engine.rank, step, bad)
            return values(named), scale.get_scale()

        (ours, scale), (others, other_scale) = dgc.simulate(2, worker)
        assert scale == other_scale == 256
        assert_same(ours, others)
        assert not torch.equal(ours[0], values(parameters())[0])

    def test_a_mean_that_its_scale_makes_infinite(self):
        """Residuals of large gradients, each finite when scaled, add up."""

        def worker(engine):
            named = [('w', nn.Parameter(torch.zeros(64, 64)))]
            composition = dgc.deep_gradient_compression(0.01, memory=Residual(), compressor=TopK())
            scale = GradScaler('cpu', 2.0**16)
            optimizer = wrap(named, composition, engine, lr=0.0, scaler=scale)
            for step in range(200):
                optimizer.zero_grad()
                before = optimizer.reducer.state_dict()
                scale.scale((named[0][1] * 3e33).sum()).backward()
                scale.step(optimizer)
                scale.update()
                if scale.get_scale() < 2.0**16:
                    assert_same(optimizer.reducer.state_dict(), before)
                    return step
            return None

        first, other = dgc.simulate(2, worker)
        assert first == other
        assert first is not None

    def test_a_discarded_step_is_skipped_by_all_scalers(self):
        def worker(engine):
            named, scale = parameters(), scaler()
            optimizer = wrap(named, exact(), engine, scaler=scale)
            for step in range(3):
                if (engine.rank, step) == (1, 1):
                    optimizer.discard()
                Loop().step(optimizer, named, engine.rank, step)
            return values(named), scale.get_scale()

        (ours, scale), (others, other_scale) = dgc.simulate(2, worker)
        assert scale == other_scale == 2048
        assert_same(ours, others)

    def test_parameters_that_no_rank_used(self):
        """They have no gradient after an exchange, as in torch."""

        def worker(engine):
            named, scale = parameters(), scaler()
            optimizer = wrap(named, exact(), engine, scaler=scale)
            before = values(named)
            for step in range(2):
                optimizer.zero_grad()
                bad = 'bias' if (step, engine.rank) == (0, 1) else WITHOUT
                used = named[:2] + named[2 + engine.rank : 3]
                backward(scale.scale(loss(used, engine.rank, step)), named, bad if used[2:] else '')
                scale.step(optimizer)
                scale.update()
            moved = [not torch.equal(a, b) for a, b in zip(before, values(named), strict=True)]
            return moved, scale.get_scale()

        assert dgc.simulate(2, worker) == [([True, True, True, False], 4096)] * 2


class TestRefusals:
    def given(self, **settings):
        named = parameters()
        return named, wrap(named, exact(), **settings)

    @pytest.mark.parametrize('explicitly', [False, True])
    @pytest.mark.parametrize('bad', ['', 'bias'])
    def test_a_scaler_that_was_not_given_is_refused_at_the_first_step_of_all_ranks(
        self, bad, explicitly
    ):
        def worker(engine):
            named, scale = parameters(), scaler()
            optimizer = wrap(named, exact(), engine)
            before = values(named)
            backward(
                scale.scale(loss(named, engine.rank, 0)), named, bad if engine.rank else WITHOUT
            )
            if explicitly:
                scale.unscale_(optimizer)
            with pytest.raises(RuntimeError) as caught:
                scale.step(optimizer)
            assert_same(values(named), before)
            assert not hasattr(optimizer, 'found_inf')
            return str(caught.value)

        for message in dgc.simulate(2, worker):
            assert 'write dgc.DistributedOptimizer(…, scaler=scaler)' in message
            assert '\n' not in message

    def test_a_step_beside_the_scaler(self):
        named, optimizer = self.given(scaler=scaler())
        optimizer.scaler.scale(loss(named, 0, 0)).backward()
        with pytest.raises(RuntimeError, match=r'call scaler\.step\(optimizer\)'):
            optimizer.step()

    def test_a_loss_that_was_never_scaled(self):
        named, _ = self.given(scaler=scaler())
        with pytest.raises(RuntimeError, match=r'call scaler\.scale\(loss\)\.backward\(\)'):
            loss(named, 0, 0).backward()

    def test_a_step_that_one_rank_alone_gives_up(self):
        named, optimizer = self.given(scaler=scaler())
        optimizer.scaler.scale(loss(named, 0, 0)).backward()
        with pytest.raises(RuntimeError, match=r'call optimizer\.discard\(\), and go on'):
            optimizer.zero_grad()

    def test_a_closure(self):
        named, optimizer = self.given(scaler=scaler())
        optimizer.scaler.scale(loss(named, 0, 0)).backward()
        with pytest.raises(RuntimeError, match='call the closure first'):
            optimizer.scaler.step(optimizer, lambda: loss(named, 0, 0))

    def test_float16_parameters(self):
        named = [*parameters(), ('half', nn.Parameter(torch.zeros(3, dtype=torch.float16)))]
        with pytest.raises(ValueError, match='half is float16: keep the parameters in float32'):
            wrap(named, exact(), scaler=scaler())
        wrap(named, exact(), scaler=scaler(enabled=False))

    def test_what_is_no_scaler(self):
        with pytest.raises(TypeError, match=r'scaler must be an object of the class GradScaler'):
            self.given(scaler=1024.0)

    @pytest.mark.parametrize('scales', [(1024.0, 512.0), (1024.0, None)])
    def test_ranks_with_different_scalers(self, scales):
        def worker(engine):
            scale = scales[engine.rank]
            self.given(engine=engine, scaler=None if scale is None else scaler(scale))

        with pytest.raises(dgc.HandshakeError, match='differ in the GradScaler'):
            dgc.simulate(2, worker)


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_scaler_can_be_copied_and_pickled_as_before(copied):
    named, scale = parameters(), scaler()
    optimizer = wrap(named, exact(), scaler=scale)
    Loop().step(optimizer, named, 0, 0)
    other = copied(scale)
    assert other.state_dict() == scale.state_dict()
    plain = nn.Parameter(torch.ones(3))
    other.scale(plain.sum()).backward()
    inner = torch.optim.SGD([plain], lr=1.0)
    other.step(inner)
    other.update()
    assert torch.equal(plain, torch.zeros(3))
    assert other.get_scale() == 2 * scale.get_scale()
    Loop().step(optimizer, named, 0, 1)
    assert other.get_scale() == scale.get_scale()


class TestHalfPrecision:
    """Parameters and gradients in two bytes: residuals, messages and sums are in four."""

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize('make', [dgc.dense, lambda: exact(1.0), lambda: exact(0.05)])
    def test_the_mean_is_computed_in_float32_and_rounded_once(self, make, dtype):
        def worker(engine):
            named = parameters(dtype=dtype)
            composition = make()
            optimizer = wrap(named, composition, engine, lr=0.0)
            local = [p - 1 / (engine.rank + 3) * torch.ones_like(p) for _, p in named]
            set_gradients(
                named, {name: g.detach() for (name, _), g in zip(named, local, strict=True)}
            )
            optimizer.synchronize()
            memory = optimizer.reducer.state_dict()['memory']
            kept = [memory[name].get('velocity', torch.zeros(())) for name, _ in named]
            assert all(each.dtype == torch.float32 for each in kept)
            sent = [g.detach().float() - k for g, k in zip(local, kept, strict=True)]
            return sent, [p.grad.clone() for _, p in named]

        found = dgc.simulate(3, worker)
        for index, mean in enumerate(found[0][1]):
            total = sum(sent[index].double() for sent, _ in found)
            assert mean.dtype == dtype
            # Of float32, whose error may move a value across the middle of two.
            assert (
                torch.equal(mean, (total / 3).float().to(dtype))
                or ((mean.double() - total / 3).abs() <= 0.501 * spacing(total / 3, dtype)).all()
            )

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    def test_small_gradients_add_up_in_the_residual(self, dtype):
        """In two bytes, 300 would be 256 after so many ones."""
        named = [('w', nn.Parameter(torch.zeros(1, 1000, dtype=dtype)))]
        composition = dgc.deep_gradient_compression(0.001, memory=Residual(), compressor=TopK())
        optimizer = wrap(named, composition, lr=0.0)
        gradient = torch.full((1, 1000), 2.0**-9 if dtype == torch.bfloat16 else 2.0**-12)
        gradient[0, 0] = 100.0
        for _ in range(300):
            optimizer.zero_grad()
            set_gradients(named, {'w': gradient.to(dtype)})
            optimizer.step()
        residual = optimizer.reducer.state_dict()['memory']['w']['residual']
        assert residual.dtype == torch.float32
        assert torch.equal(residual[0, 1:], 300 * gradient[0, 1:])

    @pytest.mark.parametrize('make', FEW.values(), ids=FEW)
    def test_bfloat16_parameters_with_a_scaler(self, make):
        def worker(engine):
            results = []
            for scale in (None, scaler()):
                named = parameters(dtype=torch.bfloat16)
                optimizer = wrap(named, make(), engine, scaler=scale)
                for step in range(4):
                    Loop().step(optimizer, named, engine.rank, step)
                results.append((values(named), optimizer.reducer.state_dict()))
            return results

        for plain, scaled in dgc.simulate(2, worker):
            assert_same(plain, scaled)


def spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbours in ``dtype`` about each value."""
    exponent = torch.frexp(values)[1].clamp(min=-13)  # float16's subnormals
    return torch.ldexp(torch.ones_like(values), exponent - 1) * torch.finfo(dtype).eps


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5)).to(dtype)


def autocast_loss(net: nn.Module, rank: int, step: int, dtype=torch.bfloat16) -> Tensor:
    torch.manual_seed(100 * step + rank)
    with torch.autocast('cpu', dtype):
        return nn.functional.cross_entropy(net(torch.randn(8, 20)), torch.arange(8) % 5)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('scales', [False, True])
def test_a_loop_with_autocast(dtype, scales):
    """Parameters, gradients and residuals are float32; uncompressed it is plain PyTorch."""

    def worker(engine):
        results = []
        for composition in (dgc.dense(), exact(0.1)):
            net = network()
            inner = torch.optim.AdamW(net.parameters(), lr=0.01)
            composition = exact(0.1, memory=Residual()) if results else composition
            scale = scaler() if scales else None
            optimizer = dgc.DistributedOptimizer(
                inner, net.named_parameters(), composition, engine, scaler=scale
            )
            for step in range(4):
                optimizer.zero_grad()
                value = autocast_loss(net, engine.rank, step, dtype)
                if scale is None:
                    value.backward()
                    optimizer.step()
                else:
                    scale.scale(value).backward()
                    scale.step(optimizer)
                    scale.update()
            results.append(values(net.named_parameters()))
        return results

    net = network()
    adamw = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(4):
        adamw.zero_grad()
        means = [torch.zeros_like(p) for p in net.parameters()]
        for rank in (0, 1):
            value = autocast_loss(net, rank, step, dtype)
            gradients = torch.autograd.grad(
                value * (1024 * 2**step if scales else 1), net.parameters()
            )
            for mean, g in zip(means, gradients, strict=True):
                mean.add_(g / (2048 * 2**step if scales else 2))
        for p, mean in zip(net.parameters(), means, strict=True):
            p.grad = mean
        adamw.step()
    (dense, compressed), others = dgc.simulate(2, worker)
    assert_same([dense, compressed], others)
    torch.testing.assert_close(dense, values(net.named_parameters()), rtol=1e-4, atol=1e-5)
    assert not torch.equal(dense[0], compressed[0])
    assert all(each.dtype == torch.float32 for each in dense)


class TestLocalSteps:
    def wrap(self, named, engine=None, every: int = 2, inner=sgd) -> dgc.LocalSteps:
        both = [p for _, p in named]
        outer = torch.optim.SGD(both, lr=1.0)
        return dgc.LocalSteps(
            inner(both), outer, named, engine=engine or LocalEngine(), every=every
        )

    def run(self, engine, scale, clips: bool, skipped=()) -> list[Tensor]:
        named = parameters()
        optimizer = self.wrap(named, engine)
        for step in range(4):
            optimizer.zero_grad()
            is_bad = (engine.rank, step) in skipped
            if scale is None:
                if is_bad:
                    optimizer.steps += 1
                    continue
                loss(named, engine.rank, step).backward()
            else:
                backward(
                    scale.scale(loss(named, engine.rank, step)), named, 'bias' if is_bad else ''
                )
                if clips:
                    scale.unscale_(optimizer)
            if clips:
                clip_grad_norm_([p for _, p in named], 1.0)
            if scale is None:
                optimizer.step()
            else:
                scale.step(optimizer)
                scale.update()
        assert optimizer.steps == 4
        return values(named)

    @pytest.mark.parametrize('clips', [False, True])
    @pytest.mark.parametrize('skipped', [(), {(1, 0)}, {(1, 2), (0, 2)}])
    def test_inner_steps_do_as_without_scaling_and_each_rank_skips_its_own(self, clips, skipped):
        def worker(engine):
            scale = scaler()
            scaled = self.run(engine, scale, clips, skipped)
            plain = self.run(engine, None, clips, skipped)
            return scaled, plain, scale.get_scale()

        found = dgc.simulate(2, worker)
        for rank, (scaled, plain, scale) in enumerate(found):
            assert_same(scaled, plain)
            bad = sum(each == rank for each, _ in skipped)
            assert scale == 1024 * 2.0 ** (4 - 2 * bad)
        assert_same(found[0][0], found[1][0])

    def test_what_is_refused_leaves_no_scale_behind(self):
        named = [('half', nn.Parameter(torch.ones(2, 3, dtype=torch.float16)))]
        optimizer, scale = self.wrap(named), scaler(4.0)
        scale.scale(named[0][1].sum()).backward()
        with pytest.raises(ValueError, match='does not divide float16 gradients'):
            scale.step(optimizer)
        with pytest.raises(RuntimeError, match='call the closure first'):
            scale.step(optimizer, lambda: None)
        assert not {'grad_scale', 'found_inf'} & set(vars(optimizer))
        assert isinstance(optimizer, Wrapper)
