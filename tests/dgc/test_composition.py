import pytest
import torch
from dgc_helpers import parameters, wrap

import dgc
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm, ClipByValue
from dgc.codec import INDICES, VALUES, Codec
from dgc.compressors import Dense, SampledTopK, TopK
from dgc.exchanges import AllGather, AllReduce
from dgc.memory import MomentumCorrection, NoMemory, Residual
from dgc.planner import PerTensor
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule


def test_dense_is_one_more_composition():
    composition = dgc.dense()
    assert isinstance(composition.memory, NoMemory)
    assert isinstance(composition.compressor, Dense)
    assert isinstance(composition.exchange, AllReduce)
    assert composition.schedule == RatioSchedule(1.0)
    assert composition.overlaps
    assert not composition.loses_gradient


def test_the_parts_of_the_paper_and_the_settings_of_its_release():
    composition = dgc.deep_gradient_compression()
    assert isinstance(composition.memory, MomentumCorrection)
    assert composition.memory.momentum_masking
    assert isinstance(composition.compressor, SampledTopK)
    assert isinstance(composition.exchange, AllGather)
    assert composition.schedule == RatioSchedule(0.001)
    codec = composition.codec
    assert (codec.values, codec.indices) == ('fp32', 'int64')
    compressor = composition.compressor
    assert (compressor.sample_ratio, compressor.strided_sample) == (0.01, True)
    assert (compressor.upper_bound, compressor.lower_bound) == (1.3, 0.8)
    assert (compressor.max_adaptation_iters, compressor.resample) == (10, True)


def test_every_setting_arrives():
    composition = dgc.deep_gradient_compression(
        compress_ratio=0.02,
        warmup_epochs=3,
        warmup_coeff=[0.3, 0.2, 0.1],
        warmup_stage_steps=5,
        sample_ratio=0.05,
        strided_sample=False,
        compress_upper_bound=1.5,
        compress_lower_bound=0.5,
        max_adaptation_iters=3,
        resample=False,
        fp16_values=True,
        int32_indices=True,
    )
    assert composition.schedule == RatioSchedule(0.02, 3, [0.3, 0.2, 0.1], 5)
    assert (composition.codec.values, composition.codec.indices) == ('fp16', 'int32')
    compressor = composition.compressor
    assert (compressor.sample_ratio, compressor.strided_sample) == (0.05, False)
    assert (compressor.upper_bound, compressor.lower_bound) == (1.5, 0.5)
    assert (compressor.max_adaptation_iters, compressor.resample) == (3, False)


@pytest.mark.parametrize('values', [None, *VALUES])
@pytest.mark.parametrize('indices', [None, *INDICES])
def test_codings_are_settings(values, indices):
    codec = dgc.deep_gradient_compression(values=values, indices=indices).codec
    assert (codec.values, codec.indices) == (values or 'fp32', indices or 'int64')


def test_published_and_other_names_of_codings_go_together():
    codec = dgc.deep_gradient_compression(fp16_values=True, indices='packed').codec
    assert (codec.values, codec.indices) == ('fp16', 'packed')
    codec = dgc.deep_gradient_compression(int32_indices=True, values='int8').codec
    assert (codec.values, codec.indices) == ('int8', 'int32')


@pytest.mark.parametrize(
    ('settings', 'complaint'),
    [
        ({'fp16_values': True, 'values': 'int8'}, "values='int8' .* leave out fp16_values"),
        ({'fp16_values': True, 'values': 'fp16'}, "values='fp16' .* leave out fp16_values"),
        ({'int32_indices': True, 'indices': 'packed'}, "'packed' .* leave out int32_indices"),
        ({'values': 'int7'}, "'int8', 'int4'.*got 'int7'"),
        ({'indices': 'int16'}, "'packed'.*got .* 'int16'"),
        ({'values': ''}, "got ''"),
    ],
    ids=str,
)
def test_codings_that_cannot_be_meant_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        dgc.deep_gradient_compression(**settings)


def test_a_codec_that_is_given_wins():
    codec = Codec('bf16', 'int32')
    words = {'values': 'int8', 'indices': 'packed', 'fp16_values': True, 'int32_indices': True}
    assert dgc.deep_gradient_compression(codec=codec, **words).codec is codec


def test_a_part_replaces_that_of_the_paper():
    parts = {
        'memory': Residual(),
        'compressor': TopK(),
        'codec': Codec('bf16'),
        'exchange': AllGather(),
        'rules': LayerRules(min_numel=5),
        'planner': PerTensor(dense_bytes=5),
    }
    clipping = ClipByValue(1.0)
    composition = dgc.deep_gradient_compression(**parts, gradient_clipping=clipping)
    assert {name: getattr(composition, name) for name in parts} == parts
    assert composition.clipping is clipping


def test_a_ratio_above_one_is_its_inverse():
    assert dgc.deep_gradient_compression(1000).schedule.ratio == 0.001
    assert dgc.deep_gradient_compression(1.0).schedule.ratio == 1.0


@pytest.mark.parametrize(
    ('settings', 'overlaps'),
    [
        ({}, True),
        ({'gradient_clipping': ClipByValue(1.0)}, True),
        ({'gradient_clipping': ClipByNorm(1.0)}, True),
        ({'gradient_clipping': ClipByModelNorm(1.0)}, False),
        ({'gradient_clipping': ClipByGlobalNorm(1.0)}, False),
        ({'nonfinite': 'skip'}, False),
    ],
    ids=str,
)
def test_what_needs_every_gradient_costs_the_overlap(settings, overlaps):
    """Whether anything is sent before step()."""
    assert dgc.deep_gradient_compression(**settings).overlaps is overlaps

    def worker(engine):
        named = parameters()
        wrap(named, dgc.dense(**settings), engine)
        before = engine.traffic.sent
        sum(parameter.sum() for _, parameter in named).backward()
        return engine.traffic.sent > before

    assert dgc.simulate(2, worker) == [overlaps] * 2


def test_another_way_with_what_is_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"\('stop', 'skip'\), got 'ignore'"):
        dgc.dense(nonfinite='ignore')


def test_sending_a_part_without_a_memory_warns():
    """grace#10."""
    composition = dgc.deep_gradient_compression(0.02, memory=NoMemory())
    assert composition.loses_gradient
    with pytest.warns(UserWarning, match='NoMemory loses whatever is not sent'):
        wrap(parameters(), composition)


def test_keeping_what_is_not_sent_does_not_warn(recwarn):
    wrap(parameters(), dgc.deep_gradient_compression(0.02))
    wrap(parameters(), dgc.dense())
    assert not [w for w in recwarn if 'memory' in str(w.message)]


def test_compositions_do_not_share_state():
    one, other = dgc.deep_gradient_compression(), dgc.deep_gradient_compression()
    one.compressor.compress(torch.ones(10), 0.1)
    assert (one.compressor.calls, other.compressor.calls) == (1, 0)
