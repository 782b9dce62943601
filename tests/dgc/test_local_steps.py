"""Local steps: plain references, compression, failures, checkpoints and refusals."""

from __future__ import annotations

import copy
import io
import math

import numpy as np
import pytest
import torch
from dgc_helpers import SHAPES, loss, parameters, set_gradients, target, values
from state_helpers import assert_same
from torch.nn import Parameter

import dgc
from dgc.codec import Codec
from dgc.compressors import TopK
from dgc.engines import LocalEngine
from dgc.exchanges.base import ring_bytes
from dgc.handshake import HandshakeError
from dgc.local_steps import LocalSteps
from dgc.memory import Residual
from dgc.nonfinite import NonFiniteGradientError
from dgc.planner import PerTensor
from dgc.saved_state import join_ranks

NESTEROV = {'lr': 0.7, 'momentum': 0.9, 'nesterov': True}
ADAMW = {'lr': 0.02, 'betas': (0.9, 0.95), 'eps': 1e-8, 'weight_decay': 0.1}


def dgc_like(**settings) -> dgc.Composition:
    """A residual and exact top-k at a density of 0.05, in an all-gather."""
    return dgc.deep_gradient_compression(
        0.05, **{'memory': Residual(), 'compressor': TopK(), 'planner': PerTensor(), **settings}
    )


COMPOSITIONS = {
    'dense': dgc.dense,
    'residual': dgc_like,
    'residual fp16': lambda **s: dgc_like(codec=Codec('fp16', 'int32'), **s),
    'residual int8': lambda **s: dgc_like(codec=Codec('int8', 'packed'), **s),
    'gtopk': lambda **s: dgc.ALGORITHMS['gtopk'].make(0.05, **s),
    'gtopk doubling': lambda **s: dgc.ALGORITHMS['gtopk-doubling'].make(0.05, **s),
}
compositions = pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)


def local(
    named, engine=None, composition=None, every=3, inner='sgd', outer=NESTEROV, **settings
) -> LocalSteps:
    """LocalSteps with SGD or AdamW inside and SGD outside."""
    tensors = [parameter for _, parameter in named]
    optimizers = {
        'sgd': lambda: torch.optim.SGD(tensors, lr=0.1),
        'adamw': lambda: torch.optim.AdamW(tensors, **ADAMW),
    }
    outer = torch.optim.SGD(tensors, **outer)
    engine = engine or LocalEngine()
    return LocalSteps(
        optimizers[inner](), outer, named, composition, engine, every=every, **settings
    )


def train(optimizer, named, steps, rank=0) -> None:
    """Take these steps, each from ``loss``."""
    for step in steps:
        optimizer.zero_grad()
        loss(named, rank, step).backward()
        optimizer.step()


def agreed(optimizer, named) -> list[torch.Tensor]:
    """θ_s, on which all ranks agree."""
    with optimizer.agreed_parameters():
        return values(named)


class AdamW:
    """Loshchilov and Hutter, Algorithm 2, on a list of arrays, in float64."""

    def __init__(self, weights):
        self.m = [np.zeros_like(w) for w in weights]
        self.v = [np.zeros_like(w) for w in weights]
        self.t = 0

    def step(self, weights, gradients):
        self.t += 1
        (b1, b2), lr = ADAMW['betas'], ADAMW['lr']
        for index, g in enumerate(gradients):
            self.m[index] = b1 * self.m[index] + (1 - b1) * g
            self.v[index] = b2 * self.v[index] + (1 - b2) * g * g
            m, v = self.m[index] / (1 - b1**self.t), self.v[index] / (1 - b2**self.t)
            weights[index] = weights[index] - lr * (
                m / (np.sqrt(v) + ADAMW['eps']) + ADAMW['weight_decay'] * weights[index]
            )


def diloco(ranks: int, rounds: int, every: int) -> list[list[np.ndarray]]:
    """DiLoCo, arXiv 2311.08105, Algorithm 1, element by element; θ after each round."""
    theta = [p.detach().double().numpy().copy() for _, p in parameters()]
    inner = [AdamW(theta) for _ in range(ranks)]
    buffer, history = [np.zeros_like(w) for w in theta], []
    for t in range(rounds):
        deltas = [np.zeros_like(w) for w in theta]
        for i in range(ranks):
            ours = [w.copy() for w in theta]  # θ_i ← θ
            for h in range(every):
                goals = [
                    target(p, i, t * every + h, index).double().numpy()
                    for index, (_, p) in enumerate(parameters())
                ]
                inner[i].step(ours, [w - goal for w, goal in zip(ours, goals, strict=True)])
            for index, w in enumerate(ours):
                deltas[index] = deltas[index] + (theta[index] - w) / ranks
        for index, delta in enumerate(deltas):  # OuterOpt: Nesterov momentum
            buffer[index] = 0.9 * buffer[index] + delta
            theta[index] = theta[index] - 0.7 * (delta + 0.9 * buffer[index])
        history.append([w.copy() for w in theta])
    return history


class TestReferences:
    @pytest.mark.parametrize('size', [1, 2, 3, 4, 5])
    @pytest.mark.parametrize('every', [1, 4])
    def test_with_nesterov_outside_it_is_diloco(self, size, every):
        rounds = 5

        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, every=every, inner='adamw')
            history = []
            for t in range(rounds):
                train(optimizer, named, range(t * every, (t + 1) * every), engine.rank)
                history.append(values(named))
            return history

        expected = diloco(size, rounds, every)
        for history in dgc.simulate(size, worker):
            for ours, theirs in zip(history, expected, strict=True):
                for weight, right in zip(ours, theirs, strict=True):
                    np.testing.assert_allclose(weight.numpy(), right, rtol=1e-4, atol=2e-5)

    @pytest.mark.parametrize('size', [1, 2, 3, 4, 5])
    @pytest.mark.parametrize('every', [1, 3])
    def test_with_a_rate_of_1_outside_it_averages_parameters(self, size, every):
        """Local SGD: the ranks' parameters after H steps are replaced by their mean."""

        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, every=every, outer={'lr': 1.0})
            plain = parameters()
            reference = torch.optim.SGD([p for _, p in plain], lr=0.1)
            for step in range(4 * every):
                train(optimizer, named, [step], engine.rank)
                reference.zero_grad()
                loss(plain, engine.rank, step).backward()
                reference.step()
                if (step + 1) % every == 0:
                    dgc.average_tensors(engine, [p for _, p in plain])
            return values(named), values(plain)

        for ours, theirs in dgc.simulate(size, worker):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

    def test_every_1_with_sgd_is_training_on_the_mean_gradient(self):
        def worker(engine):
            named, plain = parameters(), parameters()
            optimizer = local(named, engine, every=1, outer={'lr': 1.0})
            sgd = torch.optim.SGD([p for _, p in plain], lr=0.1)
            reference = dgc.DistributedOptimizer(sgd, plain, dgc.dense(), engine)
            train(optimizer, named, range(6), engine.rank)
            train(reference, plain, range(6), engine.rank)
            return values(named), values(plain)

        for ours, theirs in dgc.simulate(3, worker):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class TestCompression:
    @compositions
    @pytest.mark.parametrize('size', [1, 2, 3, 4])
    def test_ranks_are_identical_after_each_round(self, make, size):
        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, make(), inner='adamw')
            history = []
            for step in range(12):
                train(optimizer, named, [step], engine.rank)
                history.append((values(named), agreed(optimizer, named)))
            return history

        first, *others = dgc.simulate(size, worker)
        for step, (ours, on_which_all_agree) in enumerate(first):
            ends_a_round = (step + 1) % 3 == 0
            assert all(map(torch.equal, ours, on_which_all_agree)) == ends_a_round
            for other in others:
                assert_same(other[step][1], on_which_all_agree)
                assert all(map(torch.equal, other[step][0], ours)) == ends_a_round

    @compositions
    def test_what_was_applied_and_the_residuals_are_the_mean_movement(self, make):
        """θ_s(0) - θ_s(T) + mean residual = Σ mean Δ, with an outer SGD of rate 1."""

        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, make(), every=1000, outer={'lr': 1.0})
            begin = [p.double() for p in values(named)]
            moved = [torch.zeros(p.shape, dtype=torch.float64) for p in begin]
            for t in range(6):
                train(optimizer, named, range(3 * t, 3 * t + 3), engine.rank)
                pairs = zip(agreed(optimizer, named), values(named), strict=True)
                for total, (before, after) in zip(moved, pairs, strict=True):
                    total += before.double() - after.double()
                assert optimizer.synchronize()
            memory = optimizer.reducer.state_dict()['memory']
            residuals = [memory[n].get('residual', torch.zeros(())).double() for n in SHAPES]
            applied = [b - p.double() for b, p in zip(begin, values(named), strict=True)]
            return applied, residuals, moved

        results = dgc.simulate(3, worker)
        for index in range(len(SHAPES)):
            applied = results[0][0][index]
            residual, moved = (
                sum(result[which][index] for result in results) / 3 for which in (1, 2)
            )
            torch.testing.assert_close(applied + residual, moved, rtol=1e-4, atol=1e-5)

    def test_the_density_goes_by_rounds(self):
        named = parameters()
        schedule = {'warmup_epochs': 2, 'warmup_coeff': [0.5, 0.2]}
        optimizer = local(named, composition=dgc_like(**schedule), every=3, steps_per_epoch=6)
        densities = []
        for step in range(15):
            train(optimizer, named, [step])
            if (step + 1) % 3 == 0:
                densities.append(optimizer.buckets[0].density)
        assert densities == [0.5, 0.5, 0.2, 0.2, 0.05]

    def test_steps_of_a_warm_up_are_outer_steps(self):
        named = parameters()
        optimizer = local(named, composition=dgc_like(warmup_steps=2), every=3)
        densities = []
        for step in range(9):
            train(optimizer, named, [step])
            if (step + 1) % 3 == 0:
                densities.append(optimizer.buckets[0].density)
        assert densities == pytest.approx([0.05 ** (1 / 3), 0.05 ** (2 / 3), 0.05])

    def test_momentum_correction_takes_the_outer_optimizers_momentum(self):
        """Uncompressed, DGCSGD over it is SGD with the same momentum."""

        def run(make, composition):
            named = parameters()
            tensors = [p for _, p in named]
            inner, outer = torch.optim.SGD(tensors, lr=0.1), make(tensors, lr=0.7, momentum=0.9)
            optimizer = LocalSteps(inner, outer, named, composition, LocalEngine(), every=2)
            train(optimizer, named, range(8))
            return values(named)

        ours = run(dgc.DGCSGD, dgc.deep_gradient_compression(1.0))
        theirs = run(torch.optim.SGD, dgc.dense())
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_half_models_train(self, dtype):
        def worker(engine):
            named = parameters(dtype=dtype)
            optimizer = local(named, engine, dgc_like())
            train(optimizer, named, range(6), engine.rank)
            return values(named)

        first, second = dgc.simulate(2, worker)
        assert_same(first, second)
        assert all(p.dtype == dtype and p.isfinite().all() for p in first)


class TestNonFinite:
    def spoilt(self, make, nonfinite, bad_step, steps, value=math.nan):
        """Steps of three ranks, of which rank 1 has a gradient that is not finite at one."""

        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, make(nonfinite=nonfinite), every=3)
            error = None
            for step in steps:
                before = agreed(optimizer, named), optimizer.reducer.state_dict()
                outer = copy.deepcopy(optimizer.outer.state_dict())
                optimizer.zero_grad()
                scale = value if (engine.rank, step) == (1, bad_step) else 1.0
                (torch.tensor(scale) * loss(named, engine.rank, step)).backward()
                try:
                    optimizer.step()
                except NonFiniteGradientError as caught:
                    error = caught
                    break
            return optimizer, values(named), error, (*before, outer)

        return dgc.simulate(3, worker)

    @compositions
    @pytest.mark.parametrize('value', [math.nan, math.inf])
    def test_stop_raises_on_all_ranks_with_the_model_at_the_agreed_parameters(self, make, value):
        results = self.spoilt(make, 'stop', bad_step=4, steps=range(9), value=value)
        assert [optimizer.steps for optimizer, *_ in results] == [6, 6, 6]  # at the round's end
        assert [error.rank for _, _, error, _ in results] == [None, 1, None]
        assert 'rank 1: not finite' in str(results[1][2])
        for optimizer, now, _, (before, _, outer) in results:
            assert_same(now, before)
            assert_same(now, results[0][1])
            assert_same(optimizer.state_dict()['outer'], outer)
            assert all(p.isfinite().all() for p in now)

    @compositions
    @pytest.mark.parametrize('bad_step', [3, 5])
    def test_skip_leaves_the_round_out_on_all_ranks(self, make, bad_step):
        results = self.spoilt(make, 'skip', bad_step, range(6))
        for optimizer, now, error, (before, state, outer) in results:
            assert error is None
            assert_same(now, before)
            assert_same(now, results[0][1])
            assert_same(optimizer.reducer.state_dict(), state)
            assert_same(optimizer.state_dict()['outer'], outer)

    @compositions
    def test_after_a_skipped_round_training_goes_on_as_if_it_had_not_been(self, make):
        skipped = self.spoilt(make, 'skip', 4, range(9))
        without = self.spoilt(make, 'skip', None, [0, 1, 2, 6, 7, 8])
        for ours, theirs in zip(skipped, without, strict=True):
            assert_same(ours[1], theirs[1])
            assert_same(ours[0].reducer.state_dict(), theirs[0].reducer.state_dict())

    def test_an_inner_state_that_is_not_finite_is_discarded_where_it_is(self):
        """Else every later movement of that rank would be non-finite, and all would skip it."""

        def worker(engine):
            named = parameters()
            composition = dgc.dense(nonfinite='skip')
            optimizer = local(named, engine, composition, every=3, inner='adamw')
            moves, held = [], []
            for step in range(12):
                before = agreed(optimizer, named)
                optimizer.zero_grad()
                scale = math.nan if (engine.rank, step) == (1, 4) else 1.0
                (torch.tensor(scale) * loss(named, engine.rank, step)).backward()
                optimizer.step()
                if step % 3 == 2:
                    moves.append(not all(map(torch.equal, before, values(named))))
                    held.append(bool(optimizer.inner.state))
            return moves, held

        moves = [True, False, True, True]
        assert dgc.simulate(2, worker) == [(moves, [True] * 4), (moves, moves)]

    def test_synchronize_returns_whether_the_round_counts(self):
        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, dgc.dense(nonfinite='skip'), every=1000)
            usable = []
            for step in range(2):
                train(optimizer, named, [step], engine.rank)
                if engine.rank == step == 0:
                    named[0][1].data[0, 0] = math.inf
                usable.append(optimizer.synchronize())
            return usable

        assert dgc.simulate(3, worker) == [[False, True]] * 3

    @pytest.mark.parametrize('name', ['residual int8', 'gtopk'])
    def test_where_the_engine_fails_the_model_is_at_the_agreed_parameters(self, name):
        """With 'skip' all other state is as before, so that the round may be repeated."""

        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, COMPOSITIONS[name](nonfinite='skip'), every=3)
            train(optimizer, named, range(5), engine.rank)
            before, theta = optimizer.reducer.state_dict(), agreed(optimizer, named)
            outer = copy.deepcopy(optimizer.outer.state_dict())
            call = type(engine)._call

            for calls in range(3):
                remaining = iter(range(calls))

                def failing(*arguments, remaining=remaining):
                    if next(remaining, None) is None:
                        raise dgc.EngineError('connection reset')
                    return call(engine, *arguments)

                engine._call = failing
                with pytest.raises(dgc.EngineError, match='connection reset'):
                    optimizer.synchronize()
                del engine._call
                assert_same(values(named), theta)
                assert_same(optimizer.reducer.state_dict(), before)
                assert_same(optimizer.state_dict()['outer'], outer)
            assert optimizer.synchronize()
            train(optimizer, named, range(5, 9), engine.rank)
            return values(named)

        first, *others = dgc.simulate(3, worker)
        for other in others:
            assert_same(other, first)


class TestAgreedParameters:
    def test_in_the_context_ranks_agree_and_afterwards_they_are_where_they_were(self):
        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, dgc_like(), every=4)
            train(optimizer, named, range(6), engine.rank)
            before = values(named)
            inside = agreed(optimizer, named)
            assert_same(values(named), before)
            with pytest.raises(KeyError), optimizer.agreed_parameters():
                raise KeyError
            assert_same(values(named), before)
            return inside, before

        (first, ours), *others = dgc.simulate(3, worker)
        for inside, theirs in others:
            assert_same(inside, first)
            assert not any(map(torch.equal, theirs, ours))

    def test_looking_changes_nothing(self):
        def run(looks):
            named = parameters()
            optimizer = local(named, composition=dgc_like(), inner='adamw')
            for step in range(7):
                train(optimizer, named, [step])
                if looks:
                    agreed(optimizer, named)
            return values(named), optimizer.state_dict()

        assert_same(run(looks=True), run(looks=False))

    def test_of_a_distributed_optimizer_they_are_the_models(self):
        named = parameters()
        sgd = torch.optim.SGD([p for _, p in named], lr=0.1)
        optimizer = dgc.DistributedOptimizer(sgd, named, dgc.dense(), LocalEngine())
        assert_same(agreed(optimizer, named), values(named))


def round_trip(content):
    """Through a file, as plain containers and tensors."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(named, optimizer, checkpoint) -> None:
    """Load the model's parameters, then the optimizer's state."""
    with torch.no_grad():
        for (_, parameter), saved in zip(named, checkpoint['model'], strict=True):
            parameter.copy_(saved)
    optimizer.load_state_dict(checkpoint['optimizer'])


class TestState:
    @compositions
    @pytest.mark.parametrize('stop', [6, 7, 8])
    def test_a_checkpoint_within_a_round_resumes_bit_for_bit(self, make, stop):
        def worker(engine):
            def fresh():
                named = parameters()
                return named, local(named, engine, make(), inner='adamw')

            straight, optimizer = fresh()
            train(optimizer, straight, range(13), engine.rank)
            first, interrupted = fresh()
            train(interrupted, first, range(stop), engine.rank)
            checkpoint = {'model': values(first), 'optimizer': interrupted.state_dict()}
            second, again = fresh()
            resumed(second, again, round_trip(checkpoint))
            assert_same(values(second), values(first))
            train(again, second, range(stop, 13), engine.rank)
            assert_same(values(second), values(straight))
            assert_same(again.state_dict(), optimizer.state_dict())

        dgc.simulate(3, worker)

    def test_it_does_not_change_while_training_goes_on(self):
        named = parameters()
        optimizer = local(named, composition=dgc_like())
        train(optimizer, named, range(4))
        state = optimizer.state_dict()
        before = round_trip({key: state[key] for key in ('agreed', 'ranks', 'steps')})
        train(optimizer, named, range(4, 8))
        assert_same({key: state[key] for key in before}, before)

    def saved(self, size, steps, make=dgc_like):
        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, make(), inner='adamw')
            train(optimizer, named, range(steps), engine.rank)
            content = {'model': values(named), 'optimizer': optimizer.state_dict()}
            return round_trip(content), agreed(optimizer, named)

        return dgc.simulate(size, worker)

    @pytest.mark.parametrize('make', [dgc.dense, dgc_like])
    @pytest.mark.parametrize(('old', 'new'), [(3, 2), (2, 3), (1, 4), (4, 1)])
    def test_another_world_size_goes_on_from_the_agreed_parameters(self, make, old, new):
        saved = self.saved(old, 8, make)
        theta = saved[0][1]
        states = [content['optimizer'] for content, _ in saved]

        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, make(), inner='adamw')
            model = saved[engine.rank % old][0]['model']
            # torch's optimizers go on in the tensors that they load.
            state = copy.deepcopy(join_ranks(states))
            resumed(named, optimizer, {'model': model, 'optimizer': state})
            assert optimizer.steps == 6  # two of three local steps are dropped
            start, memory = values(named), optimizer.reducer.state_dict()['memory']
            train(optimizer, named, range(6, 9), engine.rank)
            return start, memory, values(named)

        results = dgc.simulate(new, worker)
        for start, _, after in results:
            assert_same(start, theta)
            assert_same(after, results[0][2])
        memories = [each['memory'] for each in join_ranks(states)['ranks'].values()]
        for name in SHAPES:
            for entry in results[0][1][name]:
                before = sum(memory[name][entry] for memory in memories) / old
                after = sum(memory[name][entry] for _, memory, _ in results) / new
                torch.testing.assert_close(after, before)

    def test_another_ranks_state_goes_on_from_the_agreed_parameters(self):
        """A rank that lost its own file."""
        saved = self.saved(2, 8)

        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, dgc_like(), inner='adamw')
            resumed(named, optimizer, copy.deepcopy(saved[0][0]))
            return values(named), optimizer.steps

        with pytest.warns(UserWarning, match='rank 1 of 2 loads the state of rank 0'):
            (ours, step), (theirs, other_step) = dgc.simulate(2, worker)
        assert_same(ours, saved[0][0]['model'])
        assert_same(theirs, saved[0][1])
        assert (step, other_step) == (8, 8)  # or the ranks would average in different calls

    def test_loading_keeps_the_optimizers_groups_shared(self):
        named = parameters()
        optimizer = local(named, composition=dgc_like(), inner='adamw')
        train(optimizer, named, range(4))
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.param_groups is optimizer.inner.param_groups
        assert optimizer.state is optimizer.inner.state
        optimizer.outer.param_groups[0]['momentum'] = 0.25
        assert {bucket.momentum for bucket in optimizer.buckets} == {0.25}


DIFFERENT = {
    'every': (
        lambda rank: {'every': 3 + rank},
        'local steps between outer steps',
    ),
    'rate': (lambda rank: {'outer': {'lr': 0.7 + rank / 10}}, 'the optimizer'),
    'momentum': (
        lambda rank: {'outer': {'lr': 0.7, 'momentum': 0.9, 'nesterov': not rank}},
        'the optimizer',
    ),
    'composition': (
        lambda rank: {'composition': dgc_like() if rank else dgc.dense()},
        'the composition',
    ),
    'configuration': (lambda rank: {'configuration': f'lr = {rank}'}, 'the configuration'),
}


class TestRefusals:
    @pytest.mark.parametrize(('settings', 'aspect'), DIFFERENT.values(), ids=DIFFERENT)
    def test_ranks_that_differ_do_not_begin(self, settings, aspect):
        def worker(engine):
            with pytest.raises(HandshakeError, match=f'rank 1 and rank 0 differ in {aspect}'):
                local(parameters(), engine, **settings(engine.rank))
            return True

        assert all(dgc.simulate(2, worker))

    def test_another_outer_optimizer_is_refused(self):
        def worker(engine):
            named = parameters()
            tensors = [p for _, p in named]
            make = torch.optim.RMSprop if engine.rank else torch.optim.Adam
            inner, outer = torch.optim.SGD(tensors, lr=0.1), make(tensors, lr=0.1)
            with pytest.raises(HandshakeError, match='rank 1 and rank 0 differ in the optimizer'):
                LocalSteps(inner, outer, named, engine=engine)
            return True

        assert all(dgc.simulate(2, worker))

    def test_another_inner_rate_is_not(self):
        """The inner optimizer is a rank's own."""

        def worker(engine):
            named = parameters()
            tensors = [p for _, p in named]
            inner = torch.optim.SGD(tensors, lr=0.1 / (1 + engine.rank))
            outer = torch.optim.SGD(tensors, lr=1.0)
            optimizer = LocalSteps(inner, outer, named, engine=engine, every=2)
            train(optimizer, named, range(4), engine.rank)
            return values(named)

        first, second = dgc.simulate(2, worker)
        assert_same(first, second)

    @pytest.mark.parametrize('every', [0, -1])
    def test_fewer_than_one_inner_step_is_refused(self, every):
        with pytest.raises(ValueError, match=f'at least 1 inner step, got {every}'):
            local(parameters(), every=every)

    def test_optimizers_of_different_parameters_are_refused(self):
        named = parameters()
        inner = torch.optim.SGD([named[0][1]], lr=0.1)
        outer = torch.optim.SGD([p for _, p in named], lr=1.0)
        with pytest.raises(ValueError, match='must update the same parameters'):
            LocalSteps(inner, outer, named, engine=LocalEngine())

    def test_momentum_twice_is_refused(self):
        with pytest.raises(ValueError, match='MomentumCorrection holds the momentum and SGD would'):
            local(parameters(), composition=dgc.deep_gradient_compression(0.05))

    def test_a_warm_up_in_epochs_needs_their_length(self):
        with pytest.raises(ValueError, match='needs steps_per_epoch'):
            local(parameters(), composition=dgc_like(warmup_epochs=2))

    def test_nothing_to_train_is_refused(self):
        frozen = [('w', Parameter(torch.ones(3), requires_grad=False))]
        with pytest.raises(ValueError, match='no parameter needs a gradient'):
            local(frozen)


class TestProgress:
    @pytest.mark.parametrize('make', [dgc.dense, dgc_like])
    def test_dense_sent_counts_every_inner_step_and_sent_only_rounds(self, make):
        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, make(), every=4)
            train(optimizer, named, range(10), engine.rank)
            one_round = optimizer.progress.sent // 2
            dense = sum(round(ring_bytes(b.numel, engine.size)) for b in optimizer.buckets)
            return optimizer.progress, one_round, dense

        for progress, one_round, dense in dgc.simulate(3, worker):
            assert progress.steps == 10
            assert progress.dense_sent == 10 * dense
            assert progress.sent == progress.received == 2 * one_round
            assert progress.elements == 2 * sum(math.prod(shape) for shape in SHAPES.values())
            if make is dgc.dense:
                assert one_round == dense
            else:
                assert one_round < dense

    def test_a_round_within_the_inner_steps_counts_no_further_step(self):
        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, every=4)
            train(optimizer, named, range(6), engine.rank)
            optimizer.synchronize()
            dense = sum(round(ring_bytes(b.numel, engine.size)) for b in optimizer.buckets)
            return optimizer.progress.steps, optimizer.progress.dense_sent / dense

        assert dgc.simulate(2, worker) == [(6, 6)] * 2

    def test_inner_steps_send_nothing(self):
        def worker(engine):
            named = parameters()
            optimizer = local(named, engine, every=4)
            before = engine.traffic.messages
            train(optimizer, named, range(3), engine.rank)
            inside = engine.traffic.messages - before
            train(optimizer, named, [3], engine.rank)
            return inside, engine.traffic.messages > before

        assert dgc.simulate(3, worker) == [(0, True)] * 3


class TestLoops:
    def test_ranks_start_from_rank_0(self):
        def worker(engine):
            named = [('w', Parameter(torch.full((2, 2), float(engine.rank))))]
            optimizer = local(named, engine)
            return values(named), agreed(optimizer, named)

        for ours, theta in dgc.simulate(3, worker):
            assert ours[0].tolist() == theta[0].tolist() == [[0.0, 0.0]] * 2

    def test_a_closure_and_its_loss(self):
        named, plain = parameters(), parameters()
        optimizer, reference = local(named), local(plain)
        losses = []
        for step in range(4):

            def closure(step=step):
                optimizer.zero_grad()
                value = loss(named, 0, step)
                value.backward()
                return value

            losses.append(optimizer.step(closure).item())
        train(reference, plain, range(4))
        assert_same(values(named), values(plain))
        assert all(value > 0 for value in losses)

    def test_learning_rate_schedulers_work_on_it(self):
        named = parameters()
        optimizer = local(named)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(2):
            train(optimizer, named, [step])
            scheduler.step()
        assert optimizer.inner.param_groups[0]['lr'] == 0.025
        assert optimizer.outer.param_groups[0]['lr'] == 0.7

    def test_frozen_parameters_and_those_without_a_gradient_stay(self):
        def worker(engine):
            named = [
                *parameters(),
                ('frozen', Parameter(torch.ones(3, 3), requires_grad=False)),
            ]
            before = dict(zip([n for n, _ in named], values(named), strict=True))
            optimizer = local(named, engine, dgc_like(), every=2)
            for _ in range(4):
                optimizer.zero_grad()
                set_gradients(named, {'wide.weight': torch.ones(SHAPES['wide.weight'])})
                optimizer.step()
            return {name for name, p in named if not torch.equal(p, before[name])}

        assert dgc.simulate(2, worker) == [{'wide.weight'}] * 2

    def test_a_parameter_unfrozen_after_wrapping_is_refused(self):
        """It would move on each rank by itself, and never be averaged."""
        late = Parameter(torch.zeros(3), requires_grad=False)
        named = [*parameters(), ('late', late)]
        optimizer = local(named, every=2)
        late.requires_grad = True
        with pytest.raises(RuntimeError, match='late was not trained when'):
            train(optimizer, named, range(2))

    def test_a_parameter_frozen_after_wrapping_is_refused(self):
        named = parameters()
        optimizer = local(named, composition=dgc_like(), every=2)
        train(optimizer, named, range(2))
        named[0][1].requires_grad_(False)
        with pytest.raises(RuntimeError, match=r'wide\.weight was trained when'):
            train(optimizer, named, range(2, 4))

    def test_detached_optimizers_can_be_wrapped_again(self):
        named = parameters()
        first = local(named)
        first.detach()
        second = LocalSteps(first.inner, first.outer, named, engine=LocalEngine(), every=1)
        train(second, named, range(2))
        second.load_state_dict(second.state_dict())
        assert first.progress.steps == 0
        assert second.progress.steps == 2

    def test_channels_last_changes_nothing(self):
        def run(memory_format):
            torch.manual_seed(0)
            weight = torch.randn(4, 3, 5, 5).to(memory_format=memory_format)
            named = [('w', Parameter(weight))]
            optimizer = local(named, composition=dgc_like(), every=2)
            train(optimizer, named, range(6))
            assert named[0][1].is_contiguous(memory_format=memory_format)
            return values(named)[0].contiguous()

        ours, theirs = run(torch.channels_last), run(torch.contiguous_format)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
