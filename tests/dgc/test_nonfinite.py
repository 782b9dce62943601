"""Infinities and NaNs: seen before anything is kept back, and known to every worker."""

import math

import pytest
import torch
from dgc_helpers import loss, parameters, set_gradients, train, values, wrap

import dgc
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm
from dgc.codec import Codec
from dgc.compressors import TopK
from dgc.memory import NoMemory, Residual
from dgc.nonfinite import NonFiniteGradientError, finite

COMPOSITIONS = {
    'dense': dgc.dense,
    'dgc': lambda **s: dgc.deep_gradient_compression(0.02, **s),
    'dgc fp16': lambda **s: dgc.deep_gradient_compression(0.02, codec=Codec('fp16'), **s),
    'dgc bf16': lambda **s: dgc.deep_gradient_compression(0.02, codec=Codec('bf16'), **s),
    'dgc int8': lambda **s: dgc.deep_gradient_compression(0.02, codec=Codec('int8', 'packed'), **s),
    'dgc int4': lambda **s: dgc.deep_gradient_compression(0.02, codec=Codec('int4', 'packed'), **s),
    'residual': lambda **s: dgc.deep_gradient_compression(
        0.02, memory=Residual(), compressor=TopK(), **s
    ),
}
every = pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
NAMES = ['wide.weight', 'narrow.weight', 'bias', 'scale']


def backward(named, rank, step, bad=None, value=math.nan):
    """A backward pass, in which one element of the gradient of ``bad`` is ``value``."""
    hook = None
    if bad is not None:

        def spoil(gradient):
            spoilt = gradient.clone()
            spoilt.view(-1)[-1] = value
            return spoilt

        hook = dict(named)[bad].register_hook(spoil)
    loss(named, rank, step).backward()
    if hook is not None:
        hook.remove()


@every
@pytest.mark.parametrize('bad', NAMES)
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_one_element_stops_the_step_names_its_parameter_and_leaves_the_memory_clean(
    make, bad, value
):
    """pytorch#1810."""
    named = parameters()
    optimizer = wrap(named, make())
    train(optimizer, named, 3)
    before = optimizer.state_dict()['memory'][bad], values(named)
    optimizer.zero_grad()
    backward(named, 0, 3, bad, value)
    with pytest.raises(NonFiniteGradientError, match=f'rank 0: not finite: gradient of {bad}$'):
        optimizer.step()
    after = optimizer.state_dict()['memory']
    for buffer, tensor in after[bad].items():
        assert torch.equal(tensor, before[0][buffer])
    for buffers in after.values():
        assert all(tensor.isfinite().all() for tensor in buffers.values())
    assert all(map(torch.equal, values(named), before[1]))


@every
@pytest.mark.parametrize('bad', NAMES)
def test_infinity_on_one_rank_stops_all_of_them_at_the_same_step(make, bad):
    """fairscale#180."""

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, make(), engine)
        for step in range(5):
            optimizer.zero_grad()
            backward(
                named, engine.rank, step, bad if (engine.rank, step) == (1, 2) else None, math.inf
            )
            try:
                optimizer.step()
            except NonFiniteGradientError as error:
                return step, str(error), error.rank, values(named)
        return None

    results = dgc.simulate(3, worker)
    assert [step for step, *_ in results] == [2, 2, 2]
    assert [rank for _, _, rank, _ in results] == [None, 1, None]
    assert f'rank 1: not finite: gradient of {bad}' in results[1][1]
    for other in (results[0], results[2]):
        assert 'not finite on another rank' in other[1]
        assert all(map(torch.equal, other[3], results[1][3]))


@pytest.mark.parametrize('clipping', [ClipByNorm, ClipByModelNorm, ClipByGlobalNorm])
def test_clipping_does_not_hide_it(clipping):
    def worker(engine):
        named = parameters()
        composition = dgc.deep_gradient_compression(0.02, gradient_clipping=clipping(1.0))
        optimizer = wrap(named, composition, engine)
        backward(named, engine.rank, 0, 'wide.weight' if engine.rank == 1 else None)
        with pytest.raises(NonFiniteGradientError) as caught:
            optimizer.step()
        return caught.value.rank

    assert dgc.simulate(2, worker) == [None, 1]


def test_every_parameter_that_is_not_finite_is_named():
    named = parameters()
    optimizer = wrap(named, dgc.dense())
    gradients = {name: torch.zeros(p.shape) for name, p in named}
    gradients['bias'][0] = math.nan
    gradients['wide.weight'][0, 0] = math.inf
    for name, parameter in named:
        parameter.register_hook(lambda g, name=name: gradients[name])
    sum(p.sum() for _, p in named).backward()
    with pytest.raises(NonFiniteGradientError) as caught:
        optimizer.step()
    assert all(name in str(caught.value) for name in ('bias', 'wide.weight'))
    assert 'narrow.weight' not in str(caught.value)


def test_a_huge_finite_gradient_is_finite():
    """Its sum, which is looked at first, is not."""
    assert finite(torch.full((10,), 3e38))
    assert finite(torch.tensor([3e38, 3e38, -3e38]))
    assert not finite(torch.tensor([3e38, math.inf]))
    assert not finite(torch.tensor([math.inf, -math.inf]))
    assert finite(torch.tensor([65504.0] * 4, dtype=torch.float16))


@pytest.mark.parametrize('ratio', [0.02, 1.0])
def test_finite_gradients_that_add_up_to_infinity_stop_all_and_are_named(ratio):
    def worker(engine):
        named = parameters({'w': (30, 30)})
        optimizer = wrap(named, dgc.deep_gradient_compression(ratio), engine, lr=0.0, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            set_gradients(named, {'w': torch.full((30, 30), 2e38 if engine.rank else 1.0)})
            try:
                optimizer.step()
            except NonFiniteGradientError as error:
                return step, error.rank, str(error)
        return None

    (step, rank, _), (same_step, same_rank, message) = dgc.simulate(2, worker)
    assert step == same_step < 3
    assert (rank, same_rank) == (None, 1)
    assert 'rank 1: not finite: gradient of w' in message


class TestSkip:
    """nonfinite='skip': checked before anything is kept back, so that training goes on."""

    @pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
    @pytest.mark.parametrize('clipping', [None, ClipByGlobalNorm])
    def test_all_leave_the_step_out_and_go_on_as_if_it_had_not_been(self, make, clipping):
        def run(steps, bad_step):
            def worker(engine):
                named = parameters()
                composition = make(nonfinite='skip', gradient_clipping=clipping and clipping(10.0))
                optimizer = wrap(named, composition, engine, momentum=0.9)
                for step in steps:
                    bad = 'wide.weight' if (engine.rank, step) == (1, bad_step) else None
                    optimizer.zero_grad()
                    backward(named, engine.rank, step, bad)
                    optimizer.step()
                counters = optimizer.steps, optimizer.reducer.progress.steps
                return values(named), optimizer.state_dict()['memory'], counters

            return dgc.simulate(3, worker)

        skipped, without = run([0, 1, 2, 3], 2), run([0, 1, 3], None)
        assert [counters for _, _, counters in skipped] == [(4, 4)] * 3
        for ours, theirs in zip(skipped, without, strict=True):
            assert all(map(torch.equal, ours[0], theirs[0]))
            assert all(map(torch.equal, ours[0], skipped[0][0]))
            for name, buffers in ours[1].items():
                for buffer, tensor in buffers.items():
                    assert torch.equal(tensor, theirs[1][name][buffer])

    def test_the_schedule_moves_on_alike(self):
        def worker(engine):
            named = parameters()
            composition = dgc.deep_gradient_compression(
                0.02, 3, [0.2, 0.1, 0.05], warmup_stage_steps=1, nonfinite='skip'
            )
            optimizer = wrap(named, composition, engine)
            ratios = []
            for step in range(4):
                ratios.append(optimizer.reducer.buckets[0].ratio)
                optimizer.zero_grad()
                backward(named, engine.rank, step, 'bias' if step == engine.rank else None)
                optimizer.step()
            return ratios

        assert dgc.simulate(2, worker) == [[0.2, 0.1, 0.05, 0.02]] * 2

    def test_synchronize_says_that_the_step_is_left_out(self):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, dgc.dense(nonfinite='skip'), engine)
            said = []
            for step in range(2):
                optimizer.zero_grad()
                backward(named, engine.rank, step, 'bias' if step == engine.rank == 0 else None)
                said.append(optimizer.synchronize())
                optimizer.step()
            return said

        assert dgc.simulate(2, worker) == [[False, True]] * 2


@pytest.mark.filterwarnings('ignore:.*loses whatever')
def test_it_stops_without_a_memory_too():
    named = parameters()
    optimizer = wrap(named, dgc.deep_gradient_compression(0.02, memory=NoMemory()))
    backward(named, 0, 0, 'narrow.weight')
    with pytest.raises(NonFiniteGradientError, match=r'gradient of narrow\.weight'):
        optimizer.step()


def test_after_a_stop_another_one_names_its_own_parameter():
    """A caller who caught the first, restored a checkpoint and went on."""
    named = parameters()
    optimizer = wrap(named, dgc.dense())
    state = optimizer.state_dict()
    for bad in ('bias', 'scale'):
        backward(named, 0, 0, bad)
        with pytest.raises(NonFiniteGradientError, match=f'gradient of {bad}$'):
            optimizer.step()
        optimizer.load_state_dict(state)


def test_a_mean_that_float16_cannot_hold_is_named_and_stays_in_the_memory():
    """Of float16 gradients that were kept back, in float32, for hundreds of steps."""

    def worker(engine):
        named = [('w', torch.nn.Parameter(torch.zeros(64, 64, dtype=torch.float16)))]
        composition = dgc.deep_gradient_compression(0.001, memory=Residual(), compressor=TopK())
        optimizer = wrap(named, composition, engine, lr=0.0)
        with pytest.raises(NonFiniteGradientError, match='w, whose mean float16 cannot hold'):
            for _ in range(300):
                optimizer.zero_grad()
                set_gradients(named, {'w': torch.full((64, 64), 300.0, dtype=torch.float16)})
                optimizer.step()
        return float(optimizer.state_dict()['memory']['w']['residual'].max())

    assert all(kept > 65504 for kept in dgc.simulate(2, worker))


@pytest.mark.parametrize('clipping', [None, ClipByModelNorm(1.0)])
def test_nothing_to_train_is_no_error(clipping):
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    composition = dgc.deep_gradient_compression(nonfinite='skip', gradient_clipping=clipping)
    optimizer = wrap([('w', frozen)], composition)
    optimizer.step()
    assert optimizer.steps == 1
