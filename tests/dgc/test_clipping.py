import math

import pytest
import torch
from dgc_helpers import bucket_of, parameters, set_gradients, values, wrap

import dgc
from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.clipping import ClipByDeviation, ClipByGlobalNorm, ClipByModelNorm, ClipByNorm, ClipByValue
from dgc.engines import LocalEngine
from dgc.wiring import spec_of

EVERY = [ClipByValue, ClipByNorm, ClipByModelNorm, ClipByGlobalNorm]


def two_parameters(first: list[float], second: list[float]) -> Bucket:
    named = parameters({'a': (len(first), 1), 'b': (len(second),)})
    live = [(name, parameter, {}) for name, parameter in named]
    bucket = Bucket(BucketSpec.of(map(spec_of, live), None), [(p, {}) for _, p in named])
    bucket.gradient.copy_(torch.tensor(first + second))
    return bucket


def clipped(clipping, gradients: list[list[float]]) -> list[list[float]]:
    """Each worker's gradient, clipped."""

    def worker(engine):
        bucket = bucket_of(torch.tensor(gradients[engine.rank]))
        clipping.clip([bucket], engine)
        return bucket.gradient.tolist()

    return dgc.simulate(len(gradients), worker)


@pytest.mark.parametrize('clipping', [ClipByNorm, ClipByModelNorm])
@pytest.mark.parametrize('workers', [1, 4, 9])
def test_the_local_limit_is_the_limit_times_the_root_of_the_world_size(clipping, workers):
    """Paddle PR#21491: before the division by P, so that 4 workers have limit·2."""
    expected = 3.0 * math.sqrt(workers)
    for gradient in clipped(clipping(3.0), [[60.0, 80.0]] * workers):
        assert math.hypot(*gradient) == pytest.approx(expected, rel=1e-5)
        assert gradient[1] / gradient[0] == pytest.approx(80 / 60)


@pytest.mark.parametrize('clipping', [ClipByNorm, ClipByModelNorm])
def test_independent_gradients_that_are_clipped_have_a_mean_of_about_the_limit(clipping):
    draw = torch.Generator().manual_seed(0)
    gradients = [(100 * torch.randn(2000, generator=draw)).tolist() for _ in range(4)]
    mean = torch.tensor(clipped(clipping(5.0), gradients)).mean(dim=0)
    assert float(mean.norm()) == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize('clipping', EVERY)
def test_a_gradient_within_the_limit_is_left_as_it_is(clipping):
    assert clipped(clipping(5.0), [[3.0, 3.9]] * 2) == [pytest.approx([3.0, 3.9])] * 2


@pytest.mark.parametrize('workers', [1, 4])
def test_by_deviation_each_parameter_is_bounded_by_its_own_spread(workers):
    """Of 3 and -4 it is 3.54, however many ranks there are; a parameter of zeros stays."""

    def worker(engine):
        bucket = two_parameters([3.0, -4.0], [30.0, 40.0, 0.0])
        ClipByDeviation(0.9).clip([bucket], engine)
        return bucket.gradient.tolist()

    spread, other = 0.9 * math.sqrt(12.5), 0.9 * math.sqrt(2500 / 3)
    expected = [3.0, -spread, other, other, 0.0]
    assert expected[2] < 30
    assert dgc.simulate(workers, worker) == [pytest.approx(expected, rel=1e-6)] * workers


def test_by_value_bounds_every_element():
    assert clipped(ClipByValue(2.0), [[5.0, -7.0, 1.0], [2.0, -2.0, 0.0]]) == [
        [2, -2, 1],
        [2, -2, 0],
    ]


def test_by_norm_takes_each_parameter_by_itself_and_by_model_norm_all_together():
    engine = LocalEngine()
    bucket = two_parameters([30.0, 40.0], [0.6, 0.8])
    ClipByNorm(5.0).clip([bucket], engine)
    assert bucket.gradient.tolist() == pytest.approx([3.0, 4.0, 0.6, 0.8])
    buckets = [bucket_of(torch.tensor([30.0])), two_parameters([40.0], [0.0])]
    ClipByModelNorm(5.0).clip(buckets, engine)
    assert buckets[0].gradient.tolist() == pytest.approx([3.0])
    assert buckets[1].gradient.tolist() == pytest.approx([4.0, 0.0])


def test_by_global_norm_all_ranks_scale_alike_by_one_number():
    gradients = [[30.0, 0.0], [0.0, 40.0]]  # √(30² + 40²) / 2 = 25

    def worker(engine):
        bucket = bucket_of(torch.tensor(gradients[engine.rank]))
        ClipByGlobalNorm(5.0).clip([bucket], engine)
        assert engine.traffic.sent == 8  # one float64, 2·(P-1)/P times
        return bucket.gradient.tolist()

    first, second = dgc.simulate(2, worker)
    assert first == pytest.approx([6.0, 0.0])
    assert second == pytest.approx([0.0, 8.0])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('clipping', EVERY)
def test_half_gradients_are_clipped_by_a_wider_norm(clipping, dtype):
    bucket = bucket_of(torch.full((10_000,), 100.0, dtype=dtype))  # squares pass float16's 65504
    clipping(1.0).clip([bucket], LocalEngine())
    assert bucket.gradient.dtype == dtype
    expected = 1.0 if clipping is ClipByValue else 0.01
    torch.testing.assert_close(bucket.gradient, torch.full((10_000,), expected, dtype=dtype))


@pytest.mark.parametrize('clipping', EVERY)
@pytest.mark.parametrize('limit', [0.0, -1.0, math.nan])
def test_a_limit_that_is_none_is_refused(clipping, limit):
    with pytest.raises(ValueError, match='must be above 0'):
        clipping(limit)


@pytest.mark.parametrize('clipping', [None, *EVERY])
@pytest.mark.parametrize('make', [dgc.dense, lambda **s: dgc.deep_gradient_compression(0.02, **s)])
def test_a_step_has_one_round_of_collectives(make, clipping):
    """horovod#1099: synchronize(), then step(), does not reduce twice; only the global norm needs
    one more number."""

    def worker(engine):
        named = parameters()
        composition = make(gradient_clipping=clipping and clipping(0.1))
        optimizer = wrap(named, composition, engine)
        calls = []
        for kind in ('all_reduce', 'all_gather'):
            original = getattr(engine, kind)
            setattr(engine, kind, lambda t, f=original: calls.append(t.numel()) or f(t))
        set_gradients(named, {name: torch.ones(p.shape) for name, p in named})
        optimizer.synchronize()
        optimizer.synchronize()
        optimizer.step()
        assert calls.count(1) == (clipping is ClipByGlobalNorm)
        return len(calls) - calls.count(1), len(optimizer.reducer.buckets)

    for collectives, buckets in dgc.simulate(2, worker):
        assert collectives == buckets


@pytest.mark.parametrize('clipping', EVERY)
def test_dense_training_steps_by_the_clipped_mean(clipping):
    gradients = [torch.tensor([[30.0, 0.0]]), torch.tensor([[0.0, 40.0]])]

    def worker(engine):
        named = parameters({'w': (1, 2)})
        before = values(named)[0]
        optimizer = wrap(named, dgc.dense(gradient_clipping=clipping(5.0)), engine, lr=1.0)
        set_gradients(named, {'w': gradients[engine.rank]})
        optimizer.step()
        return (before - values(named)[0])[0].tolist()

    root = 5 * math.sqrt(2) / 2
    expected = {
        ClipByValue: [2.5, 2.5],
        ClipByNorm: [root, root],
        ClipByModelNorm: [root, root],
        ClipByGlobalNorm: [3.0, 4.0],
    }
    assert dgc.simulate(2, worker) == [pytest.approx(expected[clipping], rel=1e-5)] * 2


@pytest.mark.parametrize('clipping', [ClipByNorm, ClipByModelNorm, ClipByGlobalNorm])
def test_a_huge_but_finite_gradient_is_clipped_too(clipping):
    """Its squares pass float32's range; it is what clipping is for."""
    gradient = clipped(clipping(5.0), [[3e30, 4e30]])[0]
    assert gradient == pytest.approx([3.0, 4.0])
