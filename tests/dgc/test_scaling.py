"""PyTorch's documented loops with a GradScaler: what they compute, conserve, skip and refuse."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from dgc_helpers import exact, kept_by, loss, parameters, train, values, wrap
from scaling_helpers import FEW, LOOPS, WITHOUT, Loop, backward, scaler, sgd
from state_helpers import assert_same
from test_nonfinite import COMPOSITIONS, STATEFUL
from torch import nn
from torch.amp import GradScaler

import dgc
from dgc.compressors import TopK
from dgc.memory import Residual

ROWS = COMPOSITIONS | STATEFUL


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

    def test_a_scale_that_changes_within_a_step_does_what_it_does_in_plain_pytorch(self):
        def step(named, scale, optimizer):
            scale.scale(loss(named, 0, 0)).backward()
            scale.update(16.0)
            scale.step(optimizer)
            scale.update()
            return values(named)

        def worker(engine):
            named, scale = parameters(), scaler(64.0)
            return step(named, scale, wrap(named, dgc.dense(), engine, scaler=scale))

        named = parameters()
        plain = step(named, scaler(64.0), sgd([p for _, p in named]))
        for ours in dgc.simulate(2, worker):
            torch.testing.assert_close(ours, plain)

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


def conserved(make, optimizer_of, ranks: int) -> float:
    """The largest difference, relative to the largest sum, between what the ranks' gradients add up
    to, and what was applied and is left, with an overflow in step 3 on the last rank."""

    def worker(engine):
        named, scale = parameters(), scaler(1000.0, 1.7)
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


CONSERVING = {
    'dense': (dgc.dense, sgd),
    'dgc': (exact, lambda p: dgc.DGCSGD(p, lr=0.1)),
    'residual, AdamW': (
        lambda: exact(memory=Residual()),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ),
    'gtopk': (lambda: dgc.ALGORITHMS['gtopk'].make(0.05), sgd),
}


@pytest.mark.parametrize('ranks', [1, 2, 3])
@pytest.mark.parametrize('row', CONSERVING.values(), ids=CONSERVING)
def test_applied_and_kept_are_what_was_given_under_changes_of_scale_and_overflow(row, ranks):
    assert conserved(*row, ranks) < 1e-6


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
    inner.scaler = other  # an attribute that optimizers of other libraries may have
    other.unscale_(inner)
    other.step(inner)
    other.update()
    assert torch.equal(plain, torch.zeros(3))
    assert other.get_scale() == 2 * scale.get_scale()
    Loop().step(optimizer, named, 0, 1)
    assert other.get_scale() == scale.get_scale()


def test_an_overflow_in_a_sparse_gradient_is_skipped_by_all():
    """Also on a rank whose mean gradient holds no element."""

    def worker(engine):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1))
        each = scaler(growth=1.0000001)
        optimizer = dgc.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(), dgc.dense(), engine, scaler=each,
        )  # fmt: skip
        history = []
        for step in range(3):
            optimizer.zero_grad()
            factor = torch.inf if (engine.rank, step) == (1, 1) else 1.0
            value = model(torch.tensor([engine.rank, 3])).square().sum() * factor
            each.scale(value).backward()
            each.step(optimizer)
            each.update()
            history.append([p.detach().clone() for p in model.parameters()])
        return history, each.get_scale()

    (first, scale), (second, other) = dgc.simulate(2, worker)
    assert scale == other == pytest.approx(512.0, rel=1e-3)
    for one, two in zip(first, second, strict=True):
        assert all(map(torch.equal, one, two))
    assert all(map(torch.equal, first[0], first[1]))
    assert not torch.equal(first[1][0], first[2][0])


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def with_scaler(engine, **settings) -> tuple[nn.Linear, dgc.DistributedOptimizer, GradScaler]:
    """A model whose gradients are the mean of the ranks', with a GradScaler."""
    model, each = linear(), scaler()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    names = model.named_parameters()
    optimizer = dgc.DistributedOptimizer(inner, names, dgc.dense(), engine, scaler=each, **settings)
    return model, optimizer, each


def test_local_steps_divide_sparse_gradients_too():
    def moved(scale: float | None) -> torch.Tensor:
        model = nn.Embedding(5, 2, sparse=True)
        nn.init.zeros_(model.weight)
        inner, outer = (torch.optim.SGD(model.parameters(), lr=rate) for rate in (0.1, 1.0))
        optimizer = dgc.LocalSteps(inner, outer, model.named_parameters(), every=2)
        each = GradScaler('cpu', scale or 1.0, enabled=scale is not None)
        for _ in range(4):
            optimizer.zero_grad()
            each.scale(model(torch.tensor([1, 3])).sum()).backward()
            each.step(optimizer)
            each.update()
        return model.weight.detach()

    assert torch.equal(moved(1024.0), moved(None)) and moved(None).any()


def test_a_state_that_is_loaded_after_unscale_is_followed_by_update():
    """As with a plain optimizer, the scaler would not divide again; here it is refused."""

    def worker(engine):
        model, optimizer, each = with_scaler(engine)
        saved = optimizer.state_dict()

        def passed():
            optimizer.zero_grad()
            each.scale(model(torch.ones(2, 3)).sum()).backward()

        passed()
        each.unscale_(optimizer)
        optimizer.load_state_dict(saved)
        passed()
        with pytest.raises(RuntimeError, match=r'call scaler.update\(\) after loading'):
            each.step(optimizer)

    dgc.simulate(2, worker)


def test_a_loop_may_leave_a_step_out_by_update_alone():
    def worker(engine):
        model, optimizer, each = with_scaler(engine)
        before = model.weight.detach().clone()
        for step in range(2):
            optimizer.zero_grad()
            factor = torch.inf if (engine.rank, step) == (1, 0) else 1.0
            each.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            each.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if norm.isfinite():
                each.step(optimizer)
            each.update()
            assert torch.equal(model.weight, before) is (step == 0)
        return each.get_scale(), optimizer.steps

    assert dgc.simulate(2, worker) == [(1024.0, 2)] * 2


def test_a_scaler_of_one_steps_no_other_wrapper():
    """An overflow on one rank of it would change the scale there alone."""

    def worker(engine):
        _, optimizer, each = with_scaler(engine)
        other = linear()
        inner, outer = (torch.optim.SGD(other.parameters(), lr=0.1) for _ in range(2))
        local = dgc.LocalSteps(inner, outer, other.named_parameters(), engine=engine)
        each.scale(other(torch.ones(2, 3)).sum()).backward()
        with pytest.raises(RuntimeError, match='than this LocalSteps: an overflow on one rank'):
            each.step(local)
        with pytest.raises(RuntimeError, match='than this DistributedOptimizer'):
            copy.deepcopy(each).step(optimizer)

    dgc.simulate(2, worker)


def test_the_scale_is_broadcast_with_the_state():
    def worker(engine):
        _, optimizer, each = with_scaler(engine)
        if engine.rank == 1:
            each.load_state_dict({**each.state_dict(), 'scale': 777.0})
        optimizer.broadcast_state(root=1)
        return each.get_scale()

    assert dgc.simulate(3, worker) == [777.0] * 3


def test_it_is_not_detached_while_gradients_are_divided_in_part():
    model, optimizer, each = with_scaler(None)
    each.scale(model(torch.ones(2, 3)).sum()).backward()
    with pytest.raises(RuntimeError, match=r'call scaler.step\(optimizer\) before'):
        optimizer.detach()
    each.step(optimizer)
    optimizer.detach()


def test_an_optimizer_that_evaluates_a_closure_has_no_scaler():
    model = linear()
    lbfgs = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match='a GradScaler does not do: leave scaler out'):
        dgc.DistributedOptimizer(lbfgs, model.named_parameters(), dgc.dense(), scaler=scaler())
