"""Every method of local steps: against its plain twin, resumed, skipped, and under any composition.

The twins are in ``local_reference.py`` and ``low_communication_reference.py``.
"""

from __future__ import annotations

import copy
import io
import math
import re
import threading
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from dgc_helpers import SHAPES, loss, parameters, target, values
from local_methods import AVERAGE, METHODS, NESTEROV, agreed, method, train
from local_reference import desynced, post_local, sparse_loco, streaming
from low_communication_reference import compressed_all_reduce
from low_communication_reference import int8 as nearest_int8
from state_helpers import assert_same
from test_properties import TABLE, fits

import dgc
from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors import BlockTopK
from dgc.corrected import Corrected
from dgc.handshake import HandshakeError
from dgc.planner import PerTensor
from dgc.planner.fragments import strided
from dgc.saved_state import join_ranks
from dgc.transforms import ChunkLayout, Tiles

every_method = pytest.mark.parametrize('name', METHODS)
every_size = pytest.mark.parametrize('size', [1, 2, 3, 4, 5])


def model() -> list[np.ndarray]:
    """The parameters before the first step."""
    return [parameter.detach().double().numpy().copy() for _, parameter in parameters()]


def gradients(weights, rank, step):
    """Of ``dgc_helpers.loss``."""
    return [
        w - target(p, rank, step, index).double().numpy()
        for index, (w, (_, p)) in enumerate(zip(weights, parameters(), strict=True))
    ]


def assert_close(ours, theirs, atol=2e-5):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=atol)


def run(size, make, steps, **settings):
    """θ_s, θ and the optimizer of each rank after some steps."""

    def worker(engine):
        named = parameters()
        optimizer = make(named, engine, **settings)
        train(optimizer, named, range(steps), engine.rank)
        return agreed(optimizer, named), values(named), optimizer

    return dgc.simulate(size, worker)


class TestTwins:
    @every_size
    def test_sparse_loco(self, size):
        expected, errors = sparse_loco(model(), gradients, size, 4, 3, beta=0.95, lr=0.1)
        results = run(size, method('sparse-loco', AVERAGE), 12, every=3)
        for rank, (theta, _, optimizer) in enumerate(results):
            assert_close(theta, expected)
            memory = optimizer.reducer.state_dict()['memory']
            ours = np.concatenate([memory[name]['residual'].numpy().ravel() for name in SHAPES])
            np.testing.assert_allclose(ours, errors[rank], rtol=1e-3, atol=2e-5)

    @pytest.mark.parametrize(
        ('size', 'fragments', 'delay', 'merge'),
        [
            *((size, 2, 3, 0.5) for size in range(1, 6)),
            (2, 1, 0, 0.0),
            (3, 2, 0, 0.5),
            (2, 4, 2, 0.25),
        ],
    )
    def test_streaming_diloco(self, size, fragments, delay, merge):
        places = [[place for place in range(4) if place % fragments == f] for f in range(fragments)]
        expected, local = streaming(
            model(), gradients, size, 14, 5, places, delay, merge, inner_lr=0.1
        )
        make = method('streaming-diloco', fragments=fragments, delay=delay, merge=merge)
        for rank, (theta, ours, _) in enumerate(run(size, make, 14, every=5)):
            assert_close(theta, expected)
            assert_close(ours, local[rank])

    @every_size
    def test_quantized_diloco(self, size):
        """One bucket of fewer than 256 values, rounded on both ways of the all-reduce."""
        shapes = {'a': (20, 11), 'b': (5,)}
        rounds, every = 3, 2

        def worker(engine):
            named = parameters(shapes)
            optimizer = method('quantized-diloco', AVERAGE)(named, engine, every=every)
            train(optimizer, named, range(rounds * every), engine.rank)
            return values(named)

        theta = torch.cat([p.detach().flatten() for _, p in reversed(parameters(shapes))])
        errors = [torch.zeros_like(theta) for _ in range(size)]
        numel = len(theta)
        owners = [torch.zeros((r + 1) * numel // size - r * numel // size) for r in range(size)]
        for t in range(rounds):
            deltas = []
            for rank in range(size):
                ours = theta.clone()
                for step in range(t * every, (t + 1) * every):
                    goals = [
                        target(p, rank, step, i).flatten()
                        for i, (_, p) in enumerate(parameters(shapes))
                    ]
                    ours = ours - 0.1 * (ours - torch.cat(goals[::-1]))
                deltas.append(errors[rank] + theta - ours)
            mean, errors = compressed_all_reduce(deltas, owners, nearest_int8)
            theta = theta - mean
        for found in dgc.simulate(size, worker):
            ours = torch.cat([value.flatten() for value in found[::-1]])
            # A value that lies half-way between two steps may be rounded to the other one.
            assert (ours - theta).abs().max() < 0.02
            assert (ours - theta).abs().median() < 1e-5

    @every_size
    def test_des_loc(self, size):
        expected = desynced(model(), gradients, size, 12, 2, 4, 6)
        adam = {'inner': torch.optim.Adam, 'lr': 0.02}
        moments = {'exp_avg': 4, 'exp_avg_sq': 6}

        def betas(tensors, lr):
            return torch.optim.Adam(tensors, lr=lr, betas=(0.9, 0.95))

        make = method(outer=AVERAGE, moments=moments, **{**adam, 'inner': betas})
        for _, ours, _ in run(size, make, 12, every=2):
            assert_close(ours, expected)

    @every_size
    def test_post_local_sgd(self, size):
        expected = post_local(model(), gradients, size, 13, every=4, after=5, lr=0.1)
        for _, ours, _ in run(size, method(outer=AVERAGE, after=5), 13, every=4):
            assert_close(ours, expected)


class TestStreaming:
    @pytest.mark.parametrize('composition', ['diloco', 'quantized-diloco', 'sparse-loco', 'gtopk'])
    @pytest.mark.parametrize('size', [1, 3])
    def test_with_one_fragment_at_once_it_is_diloco_bit_for_bit(self, composition, size):
        outer = AVERAGE if composition == 'sparse-loco' else NESTEROV
        adam = {'inner': torch.optim.AdamW, 'lr': 0.02}
        plain = run(size, method(composition, outer, **adam), 11)
        fragments = run(size, method(composition, outer, fragments=1, **adam), 11)
        for (theta, ours, optimizer), (theirs, others, other) in zip(plain, fragments, strict=True):
            assert_same(theta, theirs)
            assert_same(ours, others)
            assert_same(optimizer.reducer.state_dict(), other.reducer.state_dict())
            assert_same(optimizer.outer.state_dict(), other.outer.state_dict())
            counted = [
                (p.steps, p.sent, p.dense_sent, p.elements)
                for p in (optimizer.progress, other.progress)
            ]
            assert counted[0] == counted[1]

    def test_inner_steps_go_on_while_a_fragment_travels(self):
        """The engine's thread is busy until a step before the fragment is due."""
        named = parameters()
        engine = threaded()
        optimizer = method('streaming-diloco', fragments=2, delay=3)(named, engine, every=6)
        gate = threading.Event()
        train(optimizer, named, range(2))
        engine.submit(gate.wait)
        theta = agreed(optimizer, named)
        for step in (2, 3, 4):  # fragment 1 is sent after the third step
            before = values(named)
            train(optimizer, named, [step])
            assert not any(map(torch.equal, before, values(named)))
            assert_same(agreed(optimizer, named), theta)
        assert optimizer.fragments[1].due == 6
        gate.set()
        train(optimizer, named, [5])
        moved = [
            not torch.equal(a, b) for a, b in zip(theta, agreed(optimizer, named), strict=True)
        ]
        assert moved == [False, True, False, True]
        engine.close()

    def test_what_is_written_meanwhile_is_not_sent(self):
        """Δ is a copy: later inner steps, and other gradients, leave the message as it was."""

        def worker(engine):
            named = parameters()
            make = method('sparse-loco', AVERAGE, fragments=2, delay=3)
            optimizer = make(named, engine, every=6)
            train(optimizer, named, range(3), engine.rank)
            for _, parameter in named:
                parameter.data.add_(engine.rank)
                parameter.grad = torch.full_like(parameter, torch.nan)
            # The parameters that have moved since do not count; the means are those of step 3.
            return optimizer.fragments[1].land().mean

        first, second = dgc.simulate(2, worker)
        assert_same(first, second)
        assert all(mean.isfinite().all() for mean in first.values())

    def test_messages_of_fragments_are_apart(self):
        """The most that is sent after one step is the largest fragment, not the model."""

        def worker(engine):
            named = parameters()
            optimizer = method('streaming-diloco', fragments=4)(named, engine, every=8)
            sent = [0]
            for step in range(16):
                train(optimizer, named, [step], engine.rank)
                sent.append(optimizer.progress.sent)
            return [after - before for before, after in pairwise(sent)]

        sizes = [math.prod(shape) * 4 for shape in SHAPES.values()]
        for sent in dgc.simulate(2, worker):
            assert sent[1::2] == [*sizes[1:], sizes[0]] * 2  # after steps 2, 4, 6 and 8
            assert sent[::2] == [0] * 8

    def test_layers_are_strided(self):
        names = ['a.0.weight', 'a.0.bias', 'a.1.weight', 'b', 'c.weight']
        assert strided(names, 1) == [names]
        assert strided(names, 2) == [['a.0.weight', 'a.0.bias', 'b'], ['a.1.weight', 'c.weight']]
        for count in (0, 5):
            with pytest.raises(ValueError, match=f'fragments must be 1 to 4, .* got {count}'):
                strided(names, count)

    def test_synchronize_applies_what_travels_and_sends_the_rest(self):
        def worker(engine):
            named = parameters()
            optimizer = METHODS['streaming'](named, engine)
            train(optimizer, named, range(5), engine.rank)
            assert [fragment.due for fragment in optimizer.fragments] == [6, None]
            assert optimizer.synchronize()
            assert [fragment.due for fragment in optimizer.fragments] == [None, None]
            return agreed(optimizer, named)

        first, *others = dgc.simulate(3, worker)
        for other in others:
            assert_same(other, first)

    def test_a_movement_that_is_not_finite_is_skipped_and_training_recovers(self):
        def worker(engine):
            named = parameters()
            optimizer = METHODS['streaming'](named, engine, parts={'nonfinite': 'skip'})
            history = []
            for step in range(24):
                optimizer.zero_grad()
                scale = math.nan if (engine.rank, step) == (1, 6) else 1.0
                (torch.tensor(scale) * loss(named, engine.rank, step)).backward()
                optimizer.step()
                history.append((agreed(optimizer, named), optimizer.skips))
            return history, values(named)

        first, *others = dgc.simulate(3, worker)
        for history, ours in others:
            assert_same([theta for theta, _ in history], [theta for theta, _ in first[0]])
            assert all(value.isfinite().all() for value in ours)
        skips = [skipped for _, skipped in first[0]]
        assert max(skips) > 0 and skips[-1] == 0
        assert not any(map(torch.equal, first[0][-1][0], first[0][12][0]))

    def test_stop_raises_on_all_ranks_with_the_model_at_the_agreed_parameters(self):
        def worker(engine):
            named = parameters()
            optimizer = METHODS['streaming'](named, engine)
            with pytest.raises(dgc.NonFiniteGradientError):
                for step in range(12):
                    optimizer.zero_grad()
                    scale = math.nan if (engine.rank, step) == (1, 5) else 1.0
                    (torch.tensor(scale) * loss(named, engine.rank, step)).backward()
                    optimizer.step()
            return optimizer.steps, values(named), agreed(optimizer, named)

        results = dgc.simulate(3, worker)
        assert [steps for steps, _, _ in results] == [8, 8, 8]  # two steps after it was sent
        for _, ours, theta in results:
            assert_same(ours, theta)
            assert_same(ours, results[0][1])

    @pytest.mark.parametrize(
        ('settings', 'match'),
        [
            ({'delay': 4}, 'delay must be at least 0 and below every = 4, got 4'),
            ({'delay': -1}, 'delay must be at least 0'),
            ({'merge': 1.0}, 'merge must be at least 0 and below 1, got 1.0'),
            ({'fragments': 9}, 'fragments must be 1 to 4'),
        ],
    )
    def test_settings_that_make_no_sense_are_refused(self, settings, match):
        with pytest.raises(ValueError, match=match):
            method('streaming-diloco', **{'fragments': 2, **settings})(parameters())

    @pytest.mark.parametrize(
        ('settings', 'aspect'),
        [
            ({'fragments': (2, 3)}, 'fragments'),
            ({'delay': (1, 2)}, 'steps that a fragment travels'),
            ({'merge': (0.0, 0.5)}, 'how much of θ is kept'),
        ],
    )
    def test_ranks_that_differ_do_not_begin(self, settings, aspect):
        def worker(engine):
            own = {name: choices[engine.rank] for name, choices in settings.items()}
            with pytest.raises(HandshakeError, match=f'rank 1 and rank 0 differ in {aspect}'):
                method('streaming-diloco', **{'fragments': 2, **own})(parameters(), engine)
            return True

        assert all(dgc.simulate(2, worker))


def threaded() -> dgc.Engine:
    """One rank whose engine has a thread."""

    class Threaded(dgc.engines.LocalEngine):
        has_thread = True

    return Threaded()


class TestPeriods:
    @pytest.mark.parametrize(
        ('settings', 'match'),
        [
            ({'after': -1}, 'after must be at least 0'),
            ({'moments': {'exp_avg': 6}}, 'must be a multiple of every = 4'),
            ({'moments': {'exp_avg': 0}}, 'must be a multiple of every = 4'),
        ],
    )
    def test_those_in_which_nothing_could_be_averaged_are_refused(self, settings, match):
        with pytest.raises(ValueError, match=match):
            method()(parameters(), **settings)

    def test_a_moment_that_the_inner_optimizer_does_not_keep_is_refused(self):
        named = parameters()
        optimizer = METHODS['des-loc'](named, moments={'momentum_buffer': 4})
        with pytest.raises(ValueError, match=r"keeps no 'momentum_buffer', .* but .*'exp_avg'"):
            train(optimizer, named, range(4))

    def test_bytes_of_moments_count(self):
        """Three rounds, three averages of one moment and one of the other, each as large."""
        numel = sum(math.prod(shape) for shape in SHAPES.values())
        for _, _, optimizer in run(2, METHODS['des-loc'], 12):
            progress = optimizer.progress
            assert progress.sent == progress.received == 7 * 4 * numel
            assert progress.dense_sent == 12 * 4 * numel

    def test_ranks_whose_periods_differ_do_not_begin(self):
        def worker(engine):
            with pytest.raises(HandshakeError, match='differ in first steps that each end'):
                method()(parameters(), engine, after=engine.rank)
            return True

        assert all(dgc.simulate(2, worker))


class TestEveryMethod:
    @every_method
    def test_ranks_agree_after_every_step(self, name):
        def worker(engine):
            named = parameters()
            optimizer = METHODS[name](named, engine)
            history = [agreed(optimizer, named)]
            for step in range(10):
                train(optimizer, named, [step], engine.rank)
                history.append(agreed(optimizer, named))
            return history

        first, *others = dgc.simulate(3, worker)
        assert not all(map(torch.equal, first[0], first[-1]))
        for other in others:
            assert_same(other, first)

    @every_method
    @pytest.mark.parametrize('shape', [(0, 3), (8, 3)], ids=['empty', 'frozen'])
    def test_what_is_not_averaged_stays_as_it_is(self, name, shape):
        """Parameters without elements, and frozen ones, may be in the groups of the optimizers."""
        named = parameters({**SHAPES, 'other.weight': shape})
        other = named[-1][1].requires_grad_(shape[0] == 0)
        before = values(named)
        optimizer = METHODS[name](named)
        train(optimizer, named, range(5))
        resume(named, optimizer, {'model': values(named), 'optimizer': optimizer.state_dict()})
        train(optimizer, named, range(5, 10))
        assert torch.equal(other, before[-1])
        assert not any(map(torch.equal, before[:-1], values(named[:-1])))

    @every_method
    def test_a_checkpoint_resumes_bit_for_bit(self, name, stop=5):
        """Within a round, and while a fragment travels."""

        def worker(engine):
            def fresh():
                named = parameters()
                return named, METHODS[name](named, engine)

            straight, optimizer = fresh()
            train(optimizer, straight, range(13), engine.rank)
            first, interrupted = fresh()
            train(interrupted, first, range(stop), engine.rank)
            saved = round_trip({'model': values(first), 'optimizer': interrupted.state_dict()})
            train(interrupted, first, range(stop, 13), engine.rank)  # looking changes nothing
            second, again = fresh()
            resume(second, again, saved)
            train(again, second, range(stop, 13), engine.rank)
            for named, other in ((first, interrupted), (second, again)):
                assert_same(values(named), values(straight))
                assert_same(other.state_dict(), optimizer.state_dict())

        dgc.simulate(2, worker)

    @every_method
    def test_another_world_size_goes_on_from_the_agreed_parameters(self, name, old=3, new=2):
        def saving(engine):
            named = parameters()
            optimizer = METHODS[name](named, engine)
            train(optimizer, named, range(6), engine.rank)
            saved = {'model': values(named), 'optimizer': optimizer.state_dict()}
            return round_trip(saved), agreed(optimizer, named)

        saved = dgc.simulate(old, saving)
        joined = join_ranks([each['optimizer'] for each, _ in saved])

        def worker(engine):
            named = parameters()
            optimizer = METHODS[name](named, engine)
            resume(named, optimizer, {**saved[0][0], 'optimizer': copy.deepcopy(joined)})
            start = values(named)
            train(optimizer, named, range(6, 11), engine.rank)
            return start, agreed(optimizer, named)

        results = dgc.simulate(new, worker)
        for start, theta in results:
            assert_same(start, saved[0][1])
            assert_same(theta, results[0][1])
        assert not all(map(torch.equal, results[0][0], results[0][1]))

    @every_method
    def test_ranks_agree_after_all_have_loaded_the_first_ones_file(self, name, stop=5):
        """Within a round, and while a fragment travels: one rank goes on, the others begin anew."""

        def saving(engine):
            named = parameters()
            optimizer = METHODS[name](named, engine)
            train(optimizer, named, range(stop), engine.rank)
            return {'model': values(named), 'optimizer': round_trip(optimizer.gather_state_dict())}

        saved = dgc.simulate(3, saving)[0]

        def worker(engine):
            named = parameters()
            optimizer = METHODS[name](named, engine)
            resume(named, optimizer, copy.deepcopy(saved))
            history = []
            for step in range(stop, 13):
                train(optimizer, named, [step], engine.rank)
                history.append(agreed(optimizer, named))
            return history

        first, *others = dgc.simulate(3, worker)
        for other in others:
            assert_same(other, first)

    def test_a_fragment_that_travels_is_applied_at_another_world_size_too(self):
        """Its residual was sent, so without it a part of the movement would be lost."""
        named = parameters()
        optimizer = METHODS['streaming'](named)
        train(optimizer, named, range(5))
        state = round_trip(optimizer.state_dict())
        assert set(state['fragments']['travelling']) == {'0'}
        mean = state['fragments']['travelling']['0']['mean']

        def worker(engine):
            named = parameters()
            again = METHODS['streaming'](named, engine)
            resume(named, again, {'model': values(named), 'optimizer': copy.deepcopy(state)})
            before = dict(zip(SHAPES, agreed(again, named), strict=True))
            train(again, named, [5, 6], engine.rank)
            return before, dict(zip(SHAPES, agreed(again, named), strict=True))

        for before, after in dgc.simulate(2, worker):
            for name, delta in mean.items():
                # The first outer step, with Nesterov's momentum from zero.
                torch.testing.assert_close(after[name], before[name] - 0.7 * 1.9 * delta)

    def test_another_number_of_fragments_is_refused_while_one_travels(self):
        named = parameters()
        optimizer = METHODS['streaming'](named)
        train(optimizer, named, range(5))
        other = METHODS['streaming'](parameters(), fragments=3)
        with pytest.raises(ValueError, match='one of 2 fragments was travelling'):
            other.load_state_dict(round_trip(optimizer.state_dict()))
        optimizer.synchronize()
        other.load_state_dict(round_trip(optimizer.state_dict()))


def round_trip(content):
    """Through a file, as plain containers and tensors."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resume(named, optimizer, saved) -> None:
    """Load the model's parameters, then the optimizer's state."""
    with torch.no_grad():
        for (_, parameter), value in zip(named, saved['model'], strict=True):
            parameter.copy_(value)
    optimizer.load_state_dict(saved['optimizer'])


# Rows whose memory belongs to an optimizer that cannot be an outer one.
NOT_OUTER = {'one-bit-adam'}


@pytest.mark.filterwarnings('ignore:.*loses part of what it cuts')
@pytest.mark.parametrize('row', [row for row in dgc.ALGORITHMS if row in TABLE])
def test_any_composition_goes_under_local_steps(row):
    """gTop-k, SparDL, PowerSGD and all others; DGC outside is DGCSGD, as its memory wants."""

    def worker(engine):
        named = parameters()
        tensors = [parameter for _, parameter in named]
        composition = TABLE[row].make()
        outside = dgc.DGCSGD if composition.memory.holds_momentum else torch.optim.SGD
        inner, outer = torch.optim.AdamW(tensors, lr=0.02), outside(tensors, lr=0.7)
        settings = {'every': 3, 'steps_per_epoch': 9}
        if row in NOT_OUTER:
            with pytest.raises(ValueError, match='AveragedMomentum'):
                dgc.LocalSteps(inner, outer, named, composition, engine, **settings)
            return []
        optimizer = dgc.LocalSteps(inner, outer, named, composition, engine, **settings)
        history = [agreed(optimizer, named)]
        for t in range(2):
            train(optimizer, named, range(3 * t, 3 * t + 3), engine.rank)
            history.append(agreed(optimizer, named))
        return history

    size = 3 if fits(row, 3) else 2
    first, *others = dgc.simulate(size, worker)
    for other in others:
        assert_same(other, first)
    for before, after in pairwise(first):
        assert not all(map(torch.equal, before, after))


@pytest.mark.parametrize(
    'row', ['diloco', 'quantized-diloco', 'streaming-diloco', 'muloco', 'zero-one-adam']
)
def test_uncompressed_a_row_of_local_steps_is_dense(row):
    """With an outer SGD of rate 1, in each step."""

    def worker(engine):
        named, plain = parameters(), parameters()
        composition = replace(dgc.ALGORITHMS[row].make(), schedule=dgc.DensitySchedule())
        tensors = [parameter for _, parameter in named]
        inner, outer = torch.optim.SGD(tensors, lr=0.1), torch.optim.SGD(tensors, lr=1.0)
        optimizer = dgc.LocalSteps(inner, outer, named, composition, engine, every=1)
        sgd = torch.optim.SGD([parameter for _, parameter in plain], lr=0.1)
        reference = dgc.DistributedOptimizer(sgd, plain, dgc.dense(), engine)
        train(optimizer, named, range(4), engine.rank)
        train(reference, plain, range(4), engine.rank)
        return values(named), values(plain)

    for ours, theirs in dgc.simulate(3, worker):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class TestParts:
    @pytest.mark.parametrize('shape', [(130, 70), (64, 128), (3, 200), (5, 3, 9, 2), (77,), ()])
    def test_tiles_follow_each_other(self, shape):
        spec = dgc.bucket_spec.BucketSpec.of(
            [
                dgc.bucket_spec.ParameterSpec('first', (7,)),
                dgc.bucket_spec.ParameterSpec('second', shape),
            ],
            None,
        )
        flat = torch.arange(spec.numel, dtype=torch.float32)
        rows = shape[0] if len(shape) > 1 else 1
        columns = math.prod(shape) // rows
        expected = list(range(7))
        for top in range(0, rows, 64):
            for left in range(0, columns, 64):
                expected += [
                    7 + row * columns + column
                    for row in range(top, min(top + 64, rows))
                    for column in range(left, min(left + 64, columns))
                ]
        moved = Tiles().forward(flat, spec)
        assert moved.tolist() == expected
        assert torch.equal(Tiles().inverse(moved, spec), flat)

    def test_a_matrix_of_whole_tiles_sends_64_of_each(self):
        spec = dgc.bucket_spec.BucketSpec.of_shape(128, 192)
        draw = torch.Generator().manual_seed(0)
        values = torch.randn(128, 192, generator=draw)
        moved = Tiles().forward(values.flatten(), spec)
        sent = BlockTopK(64, ChunkLayout()).select(Corrected(moved, spec=spec), 1.0)
        chosen = Tiles().inverse(sent.to_dense(), spec).view(128, 192) != 0
        for top in (0, 64):
            for left in (0, 64, 128):
                tile = values[top : top + 64, left : left + 64].abs().flatten()
                picked = chosen[top : top + 64, left : left + 64].flatten()
                assert set(picked.nonzero().flatten().tolist()) == set(
                    tile.topk(64).indices.tolist()
                )

    @pytest.mark.parametrize(
        ('topk', 'planner', 'never'),
        [(64, None, 0), (1, None, 3984), (64, PerTensor(), 4)],
    )
    def test_a_chunk_of_which_nothing_is_sent_is_told(self, topk, planner, never):
        named = parameters({'v': (4100,), 'w': (60, 66), 'b': (20,)})
        make = method('sparse-loco', AVERAGE, parts={'topk': topk, 'planner': planner})
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            make(named, every=1)
        match = rf'sends none of the last {never} elements .* a part of v is not trained'
        assert len(found) == bool(never)
        assert all(re.search(match, str(each.message)) for each in found)

    def test_two_bits_are_a_sign_and_one_of_two_means(self):
        values = torch.tensor([1.0, -2.0, 10.0, -14.0])
        codec = Codec('2bit', 'none')
        decoded = codec.decode(codec.encode(dgc.Sparse(values, None, 4))).values
        assert decoded.tolist() == [1.5, -1.5, 12.0, -12.0]


def test_a_bucket_of_a_fragment_does_not_touch_gradients():
    """Its result stays in the bucket's own storage."""
    named = parameters()
    optimizer = METHODS['streaming'](named)
    assert all(isinstance(bucket, Bucket) and not bucket.publishes for bucket in optimizer.buckets)
    train(optimizer, named, range(3))
    gradients = [parameter.grad.clone() for _, parameter in named]
    before = [parameter.grad for _, parameter in named]
    optimizer.synchronize()
    assert all(p.grad is held for (_, p), held in zip(named, before, strict=True))
    assert_same([p.grad for _, p in named], gradients)
