import itertools

import pytest
import torch
from dgc_helpers import parameters, train, values, wrap

import dgc
from dgc.algorithms import ALGORITHMS
from dgc.bucket_spec import BucketSpec
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm, ClipByValue
from dgc.codec import INDICES, VALUES, Codec, Unbiased
from dgc.composition import Composition, describe
from dgc.compressors import BlockTopK, Dense, SampledTopK, TopK
from dgc.exchanges import AllGather, AllReduce, ChunkAllReduce, GTopK, PowerSGD, RandomK, Scale
from dgc.memory import MomentumCorrection, NoMemory, Residual
from dgc.planner import PerTensor
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule
from dgc.state import ROLES, Elements, Resize, Values
from dgc.transforms import BlockDCT, BlockLayout


def test_uncompressed_training_is_a_composition():
    composition = dgc.dense()
    assert isinstance(composition.memory, NoMemory)
    assert isinstance(composition.compressor, Dense)
    assert isinstance(composition.exchange, AllReduce)
    assert composition.schedule == DensitySchedule()
    assert composition.overlaps
    assert not composition.loses_gradient


def test_the_parts_of_the_paper_and_the_settings_of_its_release():
    composition = dgc.deep_gradient_compression()
    assert isinstance(composition.memory, MomentumCorrection)
    assert composition.memory.momentum_masking
    assert isinstance(composition.compressor, SampledTopK)
    assert isinstance(composition.exchange, AllGather)
    assert composition.schedule == DensitySchedule(0.001)
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
    assert composition.schedule == DensitySchedule(0.02, 3, [0.3, 0.2, 0.1], 5)
    assert (composition.codec.values, composition.codec.indices) == ('fp16', 'int32')
    compressor = composition.compressor
    assert (compressor.sample_ratio, compressor.strided_sample) == (0.05, False)
    assert (compressor.upper_bound, compressor.lower_bound) == (1.5, 0.5)
    assert (compressor.max_adaptation_iters, compressor.resample) == (3, False)


@pytest.mark.parametrize('values', [None, *VALUES])
@pytest.mark.parametrize('indices', [None, *(n for n in INDICES if n not in ('none', 'even'))])
def test_codings_are_settings(values, indices):
    unbiased = values is not None and isinstance(VALUES[values].error, Unbiased)
    memory = NoMemory() if unbiased else None
    codec = dgc.deep_gradient_compression(values=values, indices=indices, memory=memory).codec
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


def test_a_ratio_above_one_is_the_inverse_of_the_density_and_one_is_uncompressed():
    assert dgc.deep_gradient_compression(1000).schedule.density == 0.001
    assert dgc.deep_gradient_compression(1.0).schedule.density is None


@pytest.mark.parametrize(
    ('settings', 'overlaps'),
    [
        ({}, True),
        ({'gradient_clipping': ClipByValue(1.0)}, True),
        ({'gradient_clipping': ClipByNorm(1.0)}, True),
        ({'gradient_clipping': ClipByModelNorm(1.0)}, False),
        ({'gradient_clipping': ClipByGlobalNorm(1.0)}, False),
        ({'nonfinite': 'skip'}, True),
        ({'nonfinite': 'skip', 'gradient_clipping': ClipByModelNorm(1.0)}, False),
    ],
)
def test_what_needs_every_gradient_costs_the_overlap(settings, overlaps):
    """Whether anything is sent before step(): of several buckets, since with 'skip' the last one
    waits for it, so that the step can be discarded."""
    assert dgc.deep_gradient_compression(**settings).overlaps is overlaps

    def worker(engine):
        named = parameters()
        # Kept in a variable: the hooks of the gradients do not keep their optimizer alive.
        optimizer = wrap(named, dgc.dense(planner=PerTensor(dense_bytes=8), **settings), engine)
        before = engine.traffic.sent
        sum(parameter.sum() for _, parameter in named).backward()
        sent = engine.traffic.sent > before
        optimizer.step()
        return sent

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


def test_parts_keep_nothing_of_a_run():
    """All state is the buckets', so that one composition may serve two optimizers."""
    composition = dgc.deep_gradient_compression(0.02)
    before = describe(composition)
    first, second = parameters(), parameters()
    one, other = wrap(first, composition, momentum=0.9), wrap(second, composition, momentum=0.9)
    train(one, first, 3)
    assert describe(composition) == before
    train(other, second, 3)
    assert all(map(torch.equal, values(first), values(second)))


def test_the_state_of_every_part_is_declared_by_its_role():
    spec = BucketSpec.of_shape(4, 5, schedule=DensitySchedule(0.1))
    declared = dgc.deep_gradient_compression().state_for(spec)
    assert declared.keys() <= set(ROLES)
    assert declared['memory'] == {'momentum': Elements(), 'velocity': Elements()}
    assert declared['compressor'] == {'search': Values(Resize.REPLICATED)}
    assert declared['codec'] == {'draws': Values(Resize.PER_RANK)}
    assert declared['exchange'] == {}
    assert dgc.dense().state_for(spec)['memory'] == dgc.dense().state_for(spec)['compressor'] == {}


class TestFingerprint:
    def test_alike_for_alike_and_different_for_every_difference(self):
        made = [
            dgc.deep_gradient_compression(),
            dgc.deep_gradient_compression(0.01),
            dgc.deep_gradient_compression(fp16_values=True),
            dgc.deep_gradient_compression(memory=Residual()),
            dgc.deep_gradient_compression(memory=Residual(0.5)),
            dgc.deep_gradient_compression(rules=LayerRules(min_dims=1)),
            dgc.deep_gradient_compression(nonfinite='skip'),
            dgc.deep_gradient_compression(gradient_clipping=ClipByValue(1.0)),
            dgc.dense(),
            Composition(transform=BlockDCT(BlockLayout(8))),
            Composition(transform=BlockDCT(BlockLayout(4))),
        ]
        found = [composition.fingerprint(None) for composition in made]
        assert found[0] == dgc.deep_gradient_compression().fingerprint(None)
        assert all(a != b for a, b in itertools.combinations(found, 2))
        assert all(isinstance(value, str) for each in found for value in each.values())

    def test_steps_per_epoch_counts_where_the_warm_up_is_by_epochs(self):
        by_epoch = dgc.deep_gradient_compression(warmup_epochs=2)
        by_step = dgc.deep_gradient_compression(warmup_epochs=2, warmup_stage_steps=5)
        few_steps = dgc.deep_gradient_compression(warmup_steps=10)
        assert by_epoch.fingerprint(7) != by_epoch.fingerprint(8)
        assert few_steps.fingerprint(7) == few_steps.fingerprint(None)
        assert few_steps.fingerprint(7) != by_step.fingerprint(7)
        assert by_step.fingerprint(7) == by_step.fingerprint(8)


@pytest.mark.parametrize(
    'row', [row for row in ALGORITHMS.values() if row.has_density], ids=lambda row: row.name
)
def test_every_density_can_fall_over_steps(row):
    schedule = row.composition(0.02, warmup_steps=7).schedule
    assert schedule == DensitySchedule(0.02, warmup_steps=7)
    with pytest.raises(ValueError, match='warmup_steps=7 and warmup_epochs=2 are two warm-ups'):
        row.composition(0.02, warmup_steps=7, warmup_epochs=2)


class TestPartsThatDoNotFit:
    def test_a_payload_that_the_exchange_does_not_take(self):
        with pytest.raises(ValueError, match=r'TopK and AllReduce do not fit.* leave the compress'):
            Composition(compressor=TopK())
        with pytest.raises(ValueError, match=r'Dense and GTopK do not fit: .* choose a compressor'):
            Composition(exchange=GTopK(), compressor=Dense(), memory=Residual())

    def test_a_codec_without_indices_for_a_sparse_message(self):
        parts = {'compressor': TopK(), 'exchange': AllGather(), 'memory': Residual()}
        with pytest.raises(ValueError, match=r"sparse messages and indices='none'.* to 'int64'"):
            Composition(**parts, codec=Codec('fp32', 'none'))

    def test_an_unbiased_coding_under_error_feedback(self):
        parts = {'compressor': TopK(), 'exchange': AllGather()}
        with pytest.raises(ValueError, match=r"'qsgd4' is unbiased, .* Residual can feed back"):
            Composition(**parts, memory=Residual(), codec=Codec('qsgd4', 'int32'))
        Composition(**parts, memory=NoMemory(), codec=Codec('qsgd4', 'int32'))

    @pytest.mark.parametrize('exchange', [AllReduce(), ChunkAllReduce(), PowerSGD(), RandomK()])
    @pytest.mark.parametrize('values', ['fp16', 'int4', 'qsgd4'])
    def test_a_coding_of_values_where_no_codec_is_involved(self, exchange, values):
        name = type(exchange).__name__
        message = f"values='{values}' has no effect with {name}, which sends float32"
        composition = Composition(
            memory=Residual(), codec=Codec(values, 'int32'), exchange=exchange
        )
        with pytest.warns(UserWarning, match=message):
            wrap(parameters(), composition)

    def test_an_unbiased_exchange_under_error_feedback(self):
        parts = {'compressor': Dense(), 'exchange': RandomK(unbiased=True)}
        with pytest.raises(ValueError, match=r'RandomK\(unbiased=True\) .* use NoMemory'):
            Composition(**parts, memory=Residual())


def test_a_transform_changes_the_basis_before_error_feedback_and_back_after_the_exchange():
    """Uncompressed, an orthonormal basis changes nothing but roundings."""
    plain, transformed = parameters(), parameters()
    dct = Composition(
        memory=Residual(),
        compressor=BlockTopK(1000, BlockLayout(8)),
        codec=Codec(),
        exchange=AllGather(),
        schedule=DensitySchedule(1.0),
        transform=BlockDCT(BlockLayout(8)),
    )
    train(wrap(plain, dgc.dense()), plain, 3)
    optimizer = wrap(transformed, dct)
    train(optimizer, transformed, 3)
    torch.testing.assert_close(values(transformed), values(plain))


def test_members_of_an_enumeration_differ_in_a_fingerprint():
    one, other = (
        dgc.Composition(
            memory=Residual(), compressor=TopK(), exchange=AllGather(scale)
        ).fingerprint(None)
        for scale in (Scale.WORLD_SIZE, Scale.CONTRIBUTORS)
    )
    assert one != other


def test_the_published_value_for_no_warm_up_is_none():
    """failures row 23"""
    published = dgc.deep_gradient_compression(warmup_epochs=-1)
    assert published.schedule == dgc.deep_gradient_compression().schedule
