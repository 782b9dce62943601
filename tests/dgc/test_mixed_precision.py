"""autocast, half precision, and a GradScaler with local steps and a server's worker."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import exact, loss, parameters, set_gradients, values, wrap
from ps_helpers import World
from scaling_helpers import FEW, WITHOUT, Loop, backward, documented, scaler, sgd
from state_helpers import assert_same
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import dgc
from dgc.compressors import TopK
from dgc.engines import LocalEngine
from dgc.memory import Residual
from dgc.parameter_server import dual_way


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
        """In two bytes, 1 plus any number of these is 1."""
        named = [('w', nn.Parameter(torch.zeros(1, 1000, dtype=dtype)))]
        composition = dgc.deep_gradient_compression(0.001, memory=Residual(), compressor=TopK())
        optimizer = wrap(named, composition, lr=0.0)
        small = torch.finfo(dtype).eps / 4
        for step in range(12):
            optimizer.zero_grad()
            gradient = torch.full((1, 1000), small if step else 1.0)
            gradient[0, 0] = 100.0  # is sent
            set_gradients(named, {'w': gradient.to(dtype)})
            optimizer.step()
        residual = optimizer.reducer.state_dict()['memory']['w']['residual']
        assert residual.dtype == torch.float32
        assert torch.equal(residual[0, 1:], torch.full((999,), 1 + 11 * small))

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


@pytest.mark.parametrize('name', ['dgc', 'power-sgd', 'demo'])
@pytest.mark.parametrize('ranks', [1, 2])
def test_autocast_around_the_step_changes_no_bit(name, ranks):
    """Products of matrices in parts of a composition were computed in bfloat16, where the engine
    has no thread of its own."""

    def worker(engine):
        results = []
        for is_enabled in (False, True):
            named = parameters()
            optimizer = wrap(named, dgc.ALGORITHMS[name].composition(), engine)
            value = loss(named, engine.rank, 0)
            with torch.autocast('cpu', torch.bfloat16, enabled=is_enabled):
                value.backward()
                optimizer.step()
            results.append((values(named), optimizer.reducer.state_dict()))
        return results

    for plain, around in dgc.simulate(ranks, worker):
        assert_same(plain, around)


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


def test_a_worker_of_a_parameter_server():
    """Its gradients are compressed in ``step()``, after the scaler has divided them."""

    def parameters_after(scale, skipped: int) -> list[Tensor]:
        world = World(lambda: dual_way(0.05), slots=1)
        worker = world.join()
        optimizer = worker.optimizer
        for step in range(4):
            optimizer.zero_grad()
            value = loss(worker.named, 0, step)
            if scale is None and step != skipped:
                value.backward()
                optimizer.step()
            elif scale is not None:
                bad = 'bias' if step == skipped else WITHOUT
                backward(scale.scale(value), worker.named, bad)
                scale.step(optimizer)
                scale.update()
        return values(world.named)

    assert_same(parameters_after(scaler(), 2), parameters_after(None, 2))


def test_the_documented_loop_trains():
    def worker(engine):
        torch.manual_seed(engine.rank)
        model = network()
        loader = [(torch.randn(8, 20), torch.arange(8) % 5)] * 30
        names = {
            'dgc': dgc, 'torch': torch, 'engine': engine, 'model': model, 'loader': loader,
            'criterion': nn.CrossEntropyLoss(),
            'optimizer': dgc.DGCSGD(model.parameters(), lr=0.1, momentum=0.9),
        }  # fmt: skip
        before = names['criterion'](model(loader[0][0]), loader[0][1]).item()
        exec(documented(0), names)
        after = names['criterion'](model(loader[0][0]), loader[0][1]).item()
        assert after < 0.8 * before
        return values(model.named_parameters())

    one, other = dgc.simulate(2, worker)
    assert_same(one, other)
