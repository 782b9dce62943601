"""Controls of the density: what they choose, against plain recomputations, and what they refuse.

Agreement, resuming and skipping are tested for their rows in ``test_properties.py``.
"""

from __future__ import annotations

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from dgc_helpers import loss, parameters, train, watch, wrap

import dgc
from dgc.compressors import BlockTopK, SampledTopK, TopK
from dgc.control import GraVAC, LGreCo
from dgc.control.l_greco import allocate
from dgc.exchanges import SparDL
from dgc.handshake import HandshakeError
from dgc.memory import NoMemory, Residual
from dgc.planner import PerTensor
from dgc.saved_state import join_ranks
from dgc.transforms import ChunkLayout

DENSITY = 0.02
COMPRESSED = ('wide.weight', 'narrow.weight')
every_size = pytest.mark.parametrize('size', [1, 2, 3, 4, 5])


def make(**parts) -> dgc.Composition:
    """Exact top-k with a residual, for each tensor by itself."""
    own = {'compressor': TopK(), 'memory': Residual(), 'planner': PerTensor()}
    return dgc.deep_gradient_compression(DENSITY, **{**own, **parts})


def factors(optimizer) -> dict[str, float]:
    """The factor of each compressible bucket."""
    return {
        bucket.name: bucket.density / DENSITY
        for bucket in optimizer.buckets
        if bucket.spec.schedule is not None
    }


def train_unevenly(optimizer, named, steps, rank) -> None:
    """Steps in which the gradients of one layer are much larger than those of the others."""
    for step in steps:
        optimizer.zero_grad()
        (loss(named, rank, step) + 20 * loss(named[1:2], rank, step)).backward()
        optimizer.step()


class TestAllocation:
    @pytest.mark.parametrize('seed', range(20))
    def test_it_is_the_best_there_is_up_to_the_rounding_of_errors(self, seed):
        draw = np.random.default_rng(seed)
        errors = np.sort(draw.exponential(size=(4, 5)) ** 2, axis=1)[:, ::-1].copy()
        sizes = np.sort(draw.exponential(size=(4, 5)), axis=1)
        budget, bins = errors[:, 2].sum(), 500

        def of(table, choice):
            return sum(table[row, column] for row, column in enumerate(choice))

        chosen = allocate(errors, sizes, 2, bins)
        choices = list(itertools.product(range(5), repeat=4))
        allowed = budget * (1 - 4 / bins)  # each of four errors is rounded up by less than a part
        best = min(of(sizes, c) for c in choices if of(errors, c) <= allowed)
        assert of(errors, chosen) <= budget * (1 + 1e-12)
        assert of(sizes, chosen) <= min(best, of(sizes, [2] * 4)) + 1e-12

    @pytest.mark.parametrize('error', [0.0, np.inf, np.nan])
    def test_without_a_budget_the_densities_stay(self, error):
        assert allocate(np.full((3, 3), error), np.ones((3, 3)), 1, 100) == [1, 1, 1]

    def test_a_choice_that_is_not_smaller_is_none(self):
        errors = np.array([[4.0, 2.0, 1.0]] * 2)
        assert allocate(errors, np.ones((2, 3)), 1, 100) == [1, 1]


@every_size
def test_l_greco_finds_the_densities_of_the_fewest_bytes(size):
    """Of all nine choices for two layers, from the elements that each rank compressed."""

    def worker(engine):
        named = parameters()
        composition = make(control=LGreCo(every=3, spread=2.0, candidates=3, bins=10_000))
        notes = watch(composition)
        optimizer = wrap(named, composition, engine, lr=0.01)
        train_unevenly(optimizer, named, range(3), engine.rank)
        corrected = {
            name: note[2].corrected.double().numpy()
            for name, note in notes.items()
            if name in factors(optimizer)
        }
        volume = composition.volume
        sizes = {
            bucket.name: [
                volume.bytes_sent(bucket.spec, DENSITY * f, max(size, 2)) for f in (0.5, 1, 2)
            ]
            for bucket in optimizer.buckets
            if bucket.name in corrected
        }
        return corrected, sizes, factors(optimizer)

    results = dgc.simulate(size, worker)
    _, sizes, found = results[0]
    names = list(found)
    assert sorted(names) == ['narrow.weight', 'wide.weight']

    def error(name, factor):
        total = 0.0
        for corrected, _, _ in results:
            squares = np.sort(corrected[name] ** 2)[::-1]
            total += squares[int(np.ceil(len(squares) * DENSITY * factor)) :].sum()
        return total

    budget = sum(error(name, 1) for name in names)
    choices = {}
    for choice in itertools.product((0.5, 1, 2), repeat=2):
        if sum(map(error, names, choice)) <= budget:
            length = sum(sizes[n][(0.5, 1, 2).index(f)] for n, f in zip(names, choice, strict=True))
            choices[choice] = length
    assert set(found.values()) != {1.0}
    for _, _, chosen in results:
        assert chosen == pytest.approx(found)
        assert choices[tuple(found[name] for name in names)] == min(choices.values())


@pytest.mark.parametrize(
    ('size', 'parts'),
    [
        *((size, {}) for size in range(1, 6)),
        (2, {'compressor': SampledTopK(), 'nonfinite': 'skip'}),
        (2, {'compressor': SampledTopK(), 'memory': None}),
    ],
)
def test_gravac_follows_the_gain(size, parts):
    """From the elements that each rank compressed and sent, window by window; also where a kernel
    adds the gradient and selects in one pass, beside the present memory or in it."""
    control = GraVAC(largest=16, gain=0.4, step=2, window=2)

    def worker(engine):
        named = parameters()
        composition = make(control=control, **parts)
        notes = watch(composition)
        optimizer = wrap(named, composition, engine)
        history = []
        for step in range(8):
            history.append(factors(optimizer)['wide.weight'])
            train(optimizer, named, [step], engine.rank)
        sums = [
            [
                sum(float(values.double().square().sum()) for values in parts)
                for parts in zip(*((note.sent, note.corrected) for note in notes_of), strict=True)
            ]
            for notes_of in zip(*(notes[name] for name in COMPRESSED), strict=True)
        ]
        return history, sums

    results = dgc.simulate(size, worker)
    expected, factor = [], 16.0
    for step in range(8):
        expected.append(factor)
        if step % 2:
            sent, total = (
                sum(sums[s][part] for _, sums in results for s in (step - 1, step))
                for part in (0, 1)
            )
            factor = min(max(factor / 2 if sent >= 0.4 * total else factor * 2, 1.0), 16.0)
    for history, _ in results:
        assert history == pytest.approx(expected)
    assert min(expected) < 16


@pytest.mark.parametrize('control', [LGreCo(every=3), GraVAC(largest=16, window=3)])
def test_another_world_size_goes_on_with_the_factors(control):
    def saving(engine):
        named = parameters()
        optimizer = wrap(named, make(control=control), engine, lr=0.01)
        train_unevenly(optimizer, named, range(4), engine.rank)
        return optimizer.state_dict(), factors(optimizer)

    saved = dgc.simulate(3, saving)
    joined = join_ranks([state for state, _ in saved])
    assert set(saved[0][1].values()) != {control.initial}

    def worker(engine):
        optimizer = wrap(parameters(), make(control=control), engine)
        optimizer.load_state_dict(copy.deepcopy(joined))
        return factors(optimizer)

    assert dgc.simulate(2, worker) == [saved[0][1]] * 2


@pytest.mark.parametrize('control', [LGreCo(every=2), GraVAC(largest=16, window=2)])
def test_it_goes_under_local_steps_and_does_not_touch_uncompressed_stages(control):
    def worker(engine):
        named = parameters()
        tensors = [parameter for _, parameter in named]
        inner, outer = torch.optim.SGD(tensors, lr=0.01), torch.optim.SGD(tensors, lr=1.0)
        composition = make(control=control, warmup_epochs=1, warmup_coeff=[1.0])
        optimizer = dgc.LocalSteps(
            inner, outer, named, composition, engine, every=2, steps_per_epoch=4
        )
        densities = []
        for step in range(14):
            train_unevenly(optimizer, named, [step], engine.rank)
            densities.append([b.density for b in optimizer.buckets if b.spec.schedule is not None])
        return densities

    first, second = dgc.simulate(2, worker)
    assert first == second
    assert first[3] == [None, None] and None not in first[5] and first[-1] != first[5]


def test_what_it_sends_counts():
    """Two numbers, once in a window: 8 bytes among two ranks; nothing without a decision."""

    def sent(engine, window):
        named = parameters()
        control = GraVAC(largest=1.0, window=window)
        optimizer = wrap(named, make(control=control), engine)
        train(optimizer, named, 2, engine.rank)
        return optimizer.progress.sent

    for often, never in zip(
        dgc.simulate(2, partial(sent, window=1)),
        dgc.simulate(2, partial(sent, window=9)),
        strict=True,
    ):
        assert often - never == 2 * 8


class TestRefusals:
    @pytest.mark.parametrize('control', [LGreCo(), GraVAC()])
    @pytest.mark.parametrize(
        ('parts', 'match'),
        [
            ({'exchange': SparDL(), 'compressor': None}, 'Dense selects none'),
            ({'memory': NoMemory()}, 'NoMemory has none: use Residual or MomentumCorrection'),
            ({'compressor': BlockTopK(4, ChunkLayout(64))}, 'on which BlockTopK does not depend'),
        ],
    )
    def test_parts_that_it_does_not_fit(self, control, parts, match):
        with pytest.raises(ValueError, match=f'{type(control).__name__} .*{match}'):
            make(control=control, **parts)

    def test_a_name(self):
        with pytest.raises(TypeError, match='control must be an object of the class Control'):
            make(control='gravac')

    @pytest.mark.parametrize(
        ('kind', 'settings', 'match'),
        [
            (LGreCo, {'every': 0}, 'every and bins must be at least 1'),
            (LGreCo, {'spread': 1.0}, 'spread must be above 1'),
            (LGreCo, {'candidates': 4}, 'candidates must be odd'),
            (GraVAC, {'largest': 0.5}, 'largest and window must be at least 1'),
            (GraVAC, {'step': 1.0}, 'step above 1'),
            (GraVAC, {'gain': 1.0}, 'gain must be above 0 and below 1'),
        ],
    )
    def test_settings_out_of_range(self, kind, settings, match):
        with pytest.raises(ValueError, match=match):
            kind(**settings)

    def test_ranks_that_differ(self):
        def worker(engine):
            with pytest.raises(HandshakeError, match='rank 1 and rank 0 differ in the composition'):
                wrap(parameters(), make(control=LGreCo(every=10 + engine.rank)), engine)
            return True

        assert all(dgc.simulate(2, worker))
