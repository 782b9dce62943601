"""0/1 Adam: its schedule, its twin, what it saves, skips and refuses.

What holds for all methods of local steps is tested in ``test_local_methods.py``.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from dgc_helpers import SHAPES, loss, parameters, target, values
from local_methods import METHODS, agreed, train, zero_one
from local_reference import zero_one_adam
from low_communication_reference import compressed_all_reduce, sign
from state_helpers import assert_same

import dgc
from dgc.handshake import HandshakeError
from dgc.optim import ZeroOneAdam
from dgc.saved_state import join_ranks
from dgc.zero_one import SyncSchedule
from utils.training.averaging import MomentumSums

SCHEDULE = SyncSchedule(freeze_step=5, variance_doubling=2, interval_doubling=4, every=4)
SYNCS, VARIANCES = {0, 1, 2, 3, 4, 6, 8, 12, 16}, {0, 1, 2, 4}
STEPS = 13
RATES = [0.02 + 0.001 * (step % 4) for step in range(STEPS)]
CODED = ('wide.weight', 'narrow.weight')  # messages of the others would be longer than float32
NUMEL = sum(math.prod(shape) for shape in SHAPES.values())


class TestSchedule:
    def test_by_hand(self):
        assert {t for t in range(17) if SCHEDULE.changes_variance(t)} == VARIANCES
        assert {t for t in range(17) if SCHEDULE.rounds(t + 1) > SCHEDULE.rounds(t)} == SYNCS

    @pytest.mark.parametrize(
        ('freeze', 'kappa', 'doubling', 'most'),
        [(1, 1, 16, 16), (40, 3, 8, 8), (100, 16, 8, 1), (7, 100, 4, 2), (64, 1, 64, 4)],
    )
    def test_it_follows_the_recursions_of_the_paper(self, freeze, kappa, doubling, most):
        schedule = SyncSchedule(freeze, kappa, doubling, most)
        variances, k, j = set(), 0, 0
        while k < freeze:
            variances.add(k)
            k, j = k + 2 ** (j // kappa), j + 1
        ends, t = [], 0
        while t < 200:
            exponent = 0 if t < freeze else (t - freeze) // doubling + 1
            t += min(2**exponent, most)
            ends.append(t)
        for steps in range(200):
            assert schedule.changes_variance(steps) == (steps in variances)
            assert schedule.rounds(steps) == sum(end <= steps for end in ends)
            last = max((end for end in ends if end <= steps), default=0)
            assert schedule.within_round(steps) == steps - last

    @pytest.mark.parametrize(
        ('settings', 'match'),
        [
            ({'freeze_step': 0}, 'freeze_step must be a whole number, 1 or more, got 0'),
            ({'variance_doubling': 1.5}, r'variance_doubling must be a whole .* got 1\.5'),
            ({'every': '4'}, "every must be a whole number, 1 or more, got '4'"),
            ({'every': 6}, 'every must be a power of two, got 6'),
            ({'every': 8, 'interval_doubling': 12}, 'must be a multiple of every = 8, got 12'),
        ],
    )
    def test_settings_that_make_no_sense_are_refused(self, settings, match):
        with pytest.raises(ValueError, match=match):
            SyncSchedule(**settings)


def gradients(weights, rank, step):
    """Of ``dgc_helpers.loss``."""
    return [
        w - target(p, rank, step, index).double().numpy()
        for index, (w, (_, p)) in enumerate(zip(weights, parameters(), strict=True))
    ]


@pytest.mark.parametrize(
    ('size', 'composition'),
    [*((size, 'zero-one-adam') for size in range(1, 6)), (3, 'dense')],
)
def test_it_is_what_the_paper_says(size, composition):
    """Uncompressed, and in one bit per element."""
    settings = {'betas': (0.9, 0.99), 'eps': 1e-6, 'weight_decay': 0.1, 'min_variance': 0.2}

    def worker(engine):
        named = parameters()
        optimizer = zero_one(SCHEDULE, composition, **settings)(named, engine)
        for step, rate in enumerate(RATES):
            optimizer.param_groups[0]['lr'] = rate
            train(optimizer, named, [step], engine.rank)
        return agreed(optimizer, named), values(named)

    results = dgc.simulate(size, worker)
    coded = CODED if composition == 'zero-one-adam' else ()
    errors = {}

    def mean_of(place, of_ranks):
        name, shape = list(SHAPES)[place], of_ranks[0].shape
        if name not in coded:
            return sum(of_ranks) / size
        numel = of_ranks[0].size
        if name not in errors:
            bounds = [rank * numel // size for rank in range(size + 1)]
            owners = [torch.zeros(bounds[r + 1] - bounds[r]) for r in range(size)]
            errors[name] = [torch.zeros(numel)] * size, owners
        residuals, owners = errors[name]
        flat = [torch.from_numpy(u.ravel()).float() for u in of_ranks]
        corrected = [u + e for u, e in zip(flat, residuals, strict=True)]
        mean, residuals = compressed_all_reduce(corrected, owners, sign)
        errors[name] = residuals, owners
        return mean.double().numpy().reshape(shape)

    model = [parameter.detach().double().numpy() for _, parameter in parameters()]
    expected, local = zero_one_adam(
        model, gradients, size, RATES, SYNCS, VARIANCES, mean_of, (0.9, 0.99), 1e-6, 0.1, 0.2
    )
    for rank, (theta, ours) in enumerate(results):
        for found, right in ((theta, expected), (ours, local[rank])):
            for one, other in zip(found, right, strict=True):
                np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=2e-5)


def test_the_variance_is_alike_on_all_ranks_and_frozen():
    def worker(engine):
        named = parameters()
        optimizer = zero_one(SCHEDULE)(named, engine)
        history = []
        for step in range(9):
            train(optimizer, named, [step], engine.rank)
            history.append([optimizer.inner.held(p)['exp_avg_sq'].clone() for _, p in named])
        return history

    first, second = dgc.simulate(2, worker)
    assert_same(first, second)
    changed = [0, *(t for t in range(1, 9) if not torch.equal(first[t][0], first[t - 1][0]))]
    assert set(changed) == VARIANCES


def test_bytes_are_those_of_some_gradients_and_of_single_bits():
    """Two ranks send as much as one message of each."""

    def worker(engine):
        named = parameters()
        optimizer = zero_one(SCHEDULE)(named, engine)
        sent = [0]
        for step in range(STEPS):
            train(optimizer, named, [step], engine.rank)
            sent.append(optimizer.progress.sent)
        return np.diff(sent)

    for sent in dgc.simulate(2, worker):
        for step in range(STEPS):
            bits = NUMEL / 8 if step in SYNCS else 0
            dense = 4 * NUMEL if step in VARIANCES else 0
            assert dense + bits <= sent[step] <= dense + 2.5 * bits


def test_at_another_world_size_the_sum_of_a_round_is_dropped():
    def saving(engine):
        named = parameters()
        optimizer = METHODS['zero-one-adam'](named, engine)
        train(optimizer, named, range(5), engine.rank)
        assert optimizer.inner.held(named[0][1])['rates'] == pytest.approx(0.02)
        return values(named), copy.deepcopy(optimizer.state_dict()), agreed(optimizer, named)

    saved = dgc.simulate(3, saving)
    joined = join_ranks([state for _, state, _ in saved])

    def worker(engine):
        named = parameters()
        optimizer = METHODS['zero-one-adam'](named, engine)
        with torch.no_grad():
            for (_, parameter), value in zip(named, saved[0][0], strict=True):
                parameter.copy_(value)
        optimizer.load_state_dict(copy.deepcopy(joined))
        assert_same(values(named), saved[0][2])
        for _, parameter in named:
            held = optimizer.inner.held(parameter)
            assert held['rates'] == 0 and not held['unsent'].any() and held['exp_avg'].any()
        assert optimizer.steps == 4  # the round begins again
        train(optimizer, named, range(4, 8), engine.rank)
        return agreed(optimizer, named)

    first, second = dgc.simulate(2, worker)
    assert_same(first, second)


@pytest.mark.parametrize('bad', [0, 1, 5])
def test_a_gradient_that_is_not_finite_is_skipped_and_training_goes_on(bad):
    """In the first step, in one that changes v, and within a round."""

    def worker(engine):
        named = parameters()
        make = METHODS['zero-one-adam']
        optimizer = make(named, engine, parts={'nonfinite': 'skip'})
        history = []
        for step in range(10):
            optimizer.zero_grad()
            scale = math.nan if (engine.rank, step) == (1, bad) else 1.0
            (torch.tensor(scale) * loss(named, engine.rank, step)).backward()
            optimizer.step()
            history.append(agreed(optimizer, named))
        variances = [optimizer.inner.held(p)['exp_avg_sq'] for _, p in named]
        return history, variances, values(named)

    first, *others = dgc.simulate(3, worker)
    for other in others:
        assert_same(other[:2], first[:2])
    assert all(value.isfinite().all() for _, _, ours in (first, *others) for value in ours)
    assert not any(map(torch.equal, first[0][bad], first[0][-1]))


def test_ranks_agree_where_a_scaler_skips_a_step_of_one():
    """Rates count for all ranks alike, by which weight decay and the momentum follow."""

    def worker(engine):
        named = parameters()
        optimizer = METHODS['zero-one-adam'](named, engine)
        scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
        for step in range(8):
            optimizer.zero_grad()
            scale = math.inf if (engine.rank, step) == (1, 5) else 1.0
            scaler.scale(torch.tensor(scale) * loss(named, engine.rank, step)).backward()
            scaler.step(optimizer)
            scaler.update()
        return values(named), scaler.get_scale(), agreed(optimizer, named)

    (_, scale, first), (_, other_scale, second) = dgc.simulate(2, worker)
    assert_same(first, second)
    assert (scale, other_scale) == (4.0, 2.0)


def test_a_parameter_without_gradients_stays_where_it_is():
    def worker(engine):
        named = parameters()
        optimizer = METHODS['zero-one-adam'](named, engine)
        for step in range(8):
            optimizer.zero_grad()
            loss(named[1:], engine.rank, step).backward()
            optimizer.step()
        return values(named)

    before = [parameter.detach() for _, parameter in parameters()]
    for ours in dgc.simulate(2, worker):
        moved = [not torch.equal(*pair) for pair in zip(ours, before, strict=True)]
        assert moved == [False, True, True, True]


class TestRefusals:
    def test_it_takes_no_steps_by_itself_nor_in_other_wrappers(self):
        def dense(adam, named):
            return dgc.DistributedOptimizer(adam, named, dgc.dense(), dgc.engines.LocalEngine())

        def local(adam, named):
            outer = torch.optim.SGD([parameter for _, parameter in named], lr=1.0)
            return dgc.LocalSteps(adam, outer, named, engine=dgc.engines.LocalEngine())

        for wrap in (lambda adam, _: adam, dense, local):
            named = parameters()
            optimizer = wrap(ZeroOneAdam([parameter for _, parameter in named]), named)
            with pytest.raises(RuntimeError, match=r'local steps of dgc\.ZeroOneSteps: wrap it'):
                train(optimizer, named, [0])

    def test_nor_after_detaching(self):
        named = parameters()
        optimizer = METHODS['zero-one-adam'](named)
        optimizer.detach()
        with pytest.raises(RuntimeError, match=r'local steps of dgc\.ZeroOneSteps'):
            train(optimizer.inner, named, [0])

    def test_another_optimizer(self):
        named = parameters()
        adam = torch.optim.Adam([parameter for _, parameter in named])
        with pytest.raises(TypeError, match='optimizer must be an object of the class ZeroOneAdam'):
            dgc.ZeroOneSteps(adam, named)
        with pytest.raises(TypeError, match=r'configs\.train\.optimizer must be .* ZeroOneAdam'):
            MomentumSums().wrap(adam, None)

    @pytest.mark.parametrize('settings', [{'lr': -1.0}, {'betas': (1.0, 0.9)}, {'eps': -1.0}])
    def test_settings_out_of_range(self, settings):
        with pytest.raises(ValueError, match='must be at least 0'):
            ZeroOneAdam([parameter for _, parameter in parameters()], **settings)

    @pytest.mark.parametrize(
        ('make', 'aspect'),
        [
            (lambda rank: zero_one(SyncSchedule(5 + rank)), 'the steps at which 0/1 Adam averages'),
            (lambda rank: zero_one(SCHEDULE, eps=0.1 + rank), 'the settings of ZeroOneAdam'),
        ],
    )
    def test_ranks_that_differ(self, make, aspect):
        def worker(engine):
            with pytest.raises(HandshakeError, match=f'rank 1 and rank 0 differ in {aspect}'):
                make(engine.rank)(parameters(), engine)
            return True

        assert all(dgc.simulate(2, worker))
