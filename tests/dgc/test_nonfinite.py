"""Infinities and NaNs: detected before error feedback, and known to every rank."""

import math

import pytest
import torch
from dgc_helpers import loss, parameters, set_gradients, train, values, wrap
from state_helpers import assert_same

import dgc
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm
from dgc.codec import Codec
from dgc.compressors import PeriodicThreshold, SampledTopK, TopK
from dgc.exchanges import AllGather, CompressedAllReduce, PowerSGD, RandomK
from dgc.memory import AveragedMomentum, NoMemory, Residual
from dgc.nonfinite import NonFiniteGradientError, finite
from dgc.schedule import DensitySchedule

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
    before = optimizer.reducer.state_dict()['memory'][bad], values(named)
    optimizer.zero_grad()
    backward(named, 0, 3, bad, value)
    with pytest.raises(NonFiniteGradientError, match=f'rank 0: not finite: gradient of {bad}$'):
        optimizer.step()
    after = optimizer.reducer.state_dict()['memory']
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


@pytest.mark.parametrize('compress_ratio', [0.02, 1.0])
def test_finite_gradients_that_add_up_to_infinity_stop_all_and_are_named(compress_ratio):
    def worker(engine):
        named = parameters({'w': (30, 30)})
        optimizer = wrap(
            named, dgc.deep_gradient_compression(compress_ratio), engine, lr=0.0, momentum=0.9
        )
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


STATEFUL = {
    'error feedback, uncompressed': lambda **s: dgc.Composition(memory=Residual(), **s),
    'periodic threshold': lambda **s: dgc.deep_gradient_compression(
        0.02, memory=Residual(), compressor=PeriodicThreshold(3), **s
    ),
    'gtopk': lambda **s: dgc.ALGORITHMS['gtopk'].make(0.02, **s),
    'spardl': lambda **s: dgc.ALGORITHMS['spardl'].make(
        0.02, teams=2, block_compressor=SampledTopK(), **s
    ),
    'oktopk': lambda **s: dgc.ALGORITHMS['oktopk'].make(0.02, 3, 4, values='int8', **s),
    'hierarchical': lambda **s: dgc.ALGORITHMS['hierarchical'].make(0.02, local_size=2, **s),
    'random-k': lambda **s: always(memory=Residual(), exchange=RandomK(), **s),
    'powersgd': lambda **s: always(memory=Residual(), exchange=PowerSGD(2), **s),
    '1-bit adam': lambda **s: always(
        warmup=2,
        memory=AveragedMomentum(),
        codec=Codec('int8', 'none'),
        exchange=CompressedAllReduce(),
        **s,
    ),
    'qsgd': lambda **s: always(codec=Codec('qsgd8', 'none'), exchange=AllGather(), **s),
}


# Whose sum over the ranks is not divided as it is added, so that it may overflow.
SUMMED = {
    name: (COMPOSITIONS | STATEFUL)[name]
    for name in ('dense', 'error feedback, uncompressed', 'oktopk', 'hierarchical', 'powersgd')
}


def always(warmup: int = 0, nonfinite: str = 'stop', **parts) -> dgc.Composition:
    """Every parameter at a density of 0.1 where the exchange selects, else of 1; at first
    ``warmup`` uncompressed steps."""
    density = 0.1 if parts['exchange'].selects else 1.0
    schedule = DensitySchedule(density)
    if warmup:
        schedule = DensitySchedule(density, 1, [1.0], stage_steps=warmup)
    rules = dgc.LayerRules(min_dims=0)
    return dgc.Composition(schedule=schedule, rules=rules, nonfinite=nonfinite, **parts)


def trained(make, steps, spoil, ranks: int = 4) -> list[tuple]:
    """Every rank's parameters, state and counts of steps after ``steps``.

    ``spoil(rank, step)`` returns the parameter whose gradient has one other value, and that value.
    """

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, make(nonfinite='skip'), engine, momentum=0.9)
        for step in steps:
            optimizer.zero_grad()
            backward(named, engine.rank, step, *spoil(engine.rank, step))
            optimizer.step()
        state = optimizer.state_dict()
        counts = state.pop('steps'), optimizer.progress.steps
        return values(named), state, counts

    return dgc.simulate(ranks, worker)


def assert_no_trace(make, spoil) -> None:
    """The spoilt step 2 leaves parameters and the state of all parts as if it had not been."""
    skipped = trained(make, [0, 1, 2, 3, 4], spoil)
    without = trained(make, [0, 1, 3, 4], lambda rank, step: ())
    assert [counts for _, _, counts in skipped] == [(5, 5)] * len(skipped)
    for ours, theirs in zip(skipped, without, strict=True):
        assert_same(ours[0], theirs[0])
        assert_same(ours[0], skipped[0][0])
        assert_same(ours[1], theirs[1])
        assert all(parameter.isfinite().all() for parameter in ours[0])


class TestSkip:
    """nonfinite='skip': all ranks roll the state of all parts back, and training goes on."""

    @pytest.mark.parametrize('bad', ['wide.weight', 'scale'])
    @pytest.mark.parametrize(
        'make', (COMPOSITIONS | STATEFUL).values(), ids=COMPOSITIONS | STATEFUL
    )
    def test_a_step_not_finite_on_one_rank_leaves_no_trace(self, make, bad):
        """Also where it is in the last bucket, when all others have been exchanged."""
        assert_no_trace(make, lambda rank, step: (bad,) if (rank, step) == (1, 2) else ())

    @pytest.mark.parametrize('value', [math.inf, -math.inf])
    @pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
    def test_nor_does_an_infinity_on_several_ranks(self, make, value):
        assert_no_trace(
            make, lambda rank, step: ('narrow.weight', value) if rank and step == 2 else ()
        )

    @pytest.mark.parametrize('make', SUMMED.values(), ids=SUMMED)
    def test_nor_does_a_sum_that_overflows(self, make):
        """Each rank's gradient is finite, and the sum over the ranks is not."""
        assert_no_trace(make, lambda rank, step: ('wide.weight', 3e38) if step == 2 else ())

    @pytest.mark.parametrize(
        'make', (COMPOSITIONS | STATEFUL).values(), ids=COMPOSITIONS | STATEFUL
    )
    def test_no_huge_gradient_makes_parameters_infinite(self, make):
        """A mean that is divided as it is added is finite, and the step is taken."""
        results = trained(
            make, range(3), lambda rank, step: ('wide.weight', 3e38) if step == 2 else ()
        )
        for parameters_, _, _ in results:
            assert_same(parameters_, results[0][0])
            assert all(parameter.isfinite().all() for parameter in parameters_)

    @pytest.mark.parametrize('clipping', [ClipByNorm, ClipByModelNorm, ClipByGlobalNorm])
    @pytest.mark.parametrize('make', [COMPOSITIONS['dense'], COMPOSITIONS['dgc']])
    def test_nor_does_a_clipped_step(self, make, clipping):
        def clipped(**settings):
            return make(gradient_clipping=clipping(10.0), **settings)

        assert_no_trace(
            clipped, lambda rank, step: ('wide.weight',) if (rank, step) == (1, 2) else ()
        )

    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_nor_does_a_mean_that_the_gradients_type_cannot_hold(self, dtype):
        """Float32 sums of residuals, in gradients of half precision."""

        def worker(engine):
            named = [('w', torch.nn.Parameter(torch.zeros(64, 64, dtype=dtype)))]
            composition = dgc.deep_gradient_compression(
                0.01, memory=Residual(), compressor=TopK(), nonfinite='skip'
            )
            optimizer = wrap(named, composition, engine, lr=0.0)
            huge = 0.6 * torch.finfo(dtype).max
            results = []
            for step in range(200):
                optimizer.zero_grad()
                before = optimizer.reducer.state_dict()
                set_gradients(named, {'w': torch.full((64, 64), huge, dtype=dtype)})
                results.append(optimizer.synchronize())
                optimizer.step()
                if not results[-1]:
                    assert_same(optimizer.reducer.state_dict(), before)
                    return step
            return None

        first, *others = dgc.simulate(2, worker)
        assert first is not None
        assert others == [first]

    def test_the_schedule_moves_on_alike(self):
        def worker(engine):
            named = parameters()
            composition = dgc.deep_gradient_compression(
                0.02, 3, [0.2, 0.1, 0.05], warmup_stage_steps=1, nonfinite='skip'
            )
            optimizer = wrap(named, composition, engine)
            densities = []
            for step in range(4):
                densities.append(optimizer.reducer.buckets[0].density)
                optimizer.zero_grad()
                backward(named, engine.rank, step, 'bias' if step == engine.rank else None)
                optimizer.step()
            return densities

        assert dgc.simulate(2, worker) == [[0.2, 0.1, 0.05, 0.02]] * 2

    def test_synchronize_returns_false_where_the_step_is_skipped(self):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, dgc.dense(nonfinite='skip'), engine)
            usable = []
            for step in range(2):
                optimizer.zero_grad()
                backward(named, engine.rank, step, 'bias' if step == engine.rank == 0 else None)
                usable.append(optimizer.synchronize())
                optimizer.step()
            return usable

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


def test_after_a_stop_nothing_is_kept_of_a_parameter_that_was_unused_in_it():
    """A caller who caught it and restored a checkpoint; then the parameter is used again."""

    def one(spoilt):
        named = parameters()
        optimizer = wrap(named, dgc.deep_gradient_compression(0.02, planner=dgc.planner.Whole()))
        backward(named, 0, 0)
        optimizer.step()
        state = optimizer.state_dict()
        if spoilt:
            optimizer.zero_grad()
            backward(named[1:], 0, 1, 'bias')
            with pytest.raises(NonFiniteGradientError):
                optimizer.step()
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        backward(named, 0, 2)
        optimizer.step()
        return [p.detach().clone() for _, p in named], optimizer.state_dict()

    (expected, state), (found, after) = one(spoilt=False), one(spoilt=True)
    assert all(map(torch.equal, found, expected))
    assert_same(after, state)


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
        return float(optimizer.reducer.state_dict()['memory']['w']['residual'].max())

    assert all(kept > 65504 for kept in dgc.simulate(2, worker))


@pytest.mark.parametrize('clipping', [None, ClipByModelNorm(1.0)])
def test_nothing_to_train_is_refused(clipping):
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    composition = dgc.deep_gradient_compression(nonfinite='skip', gradient_clipping=clipping)
    with pytest.raises(ValueError, match='no parameter needs a gradient'):
        wrap([('w', frozen)], composition)
