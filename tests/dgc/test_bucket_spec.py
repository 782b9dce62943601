"""What a bucket holds, as a value."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch

from dgc.bucket_spec import CPU, BucketSpec, MemberSpec, ParameterSpec
from dgc.schedule import DensitySchedule

SPARSE = DensitySchedule(0.01, 2, [0.5, 0.1])
PARAMETERS = (
    ParameterSpec('weight', (3, 4)),
    ParameterSpec('scale', ()),
    ParameterSpec('conv', (2, 3, 2, 2)),
    ParameterSpec('bias', (5,)),
)


def spec_for(
    schedule: DensitySchedule | None = SPARSE, requested: DensitySchedule | None = None
) -> BucketSpec:
    return BucketSpec.of(PARAMETERS, schedule, requested)


class TestParameter:
    def test_sizes_follow_from_shape_and_type(self):
        assert [each.numel for each in PARAMETERS] == [12, 1, 24, 5]
        assert ParameterSpec('w', (3, 4), torch.bfloat16).nbytes == 24
        assert ParameterSpec('w', (0, 4)).numel == 0

    def test_by_default_it_is_float32_on_the_cpu_without_momentum(self):
        assert PARAMETERS[0] == ('weight', (3, 4), torch.float32, CPU, 0.0, False)


class TestLayout:
    def test_members_lie_one_after_another(self):
        spec = spec_for()
        assert [member.offset for member in spec.members] == [0, 12, 13, 37]
        assert [member.numel for member in spec.members] == [12, 1, 24, 5]
        assert (spec.numel, spec.nbytes) == (42, 168)
        assert spec.names == ('weight', 'scale', 'conv', 'bias')

    def test_it_is_named_by_its_first_member(self):
        assert spec_for().name == 'weight and 3 more'
        assert BucketSpec.of_shape(3, 4).name == 'weight'

    def test_type_and_device_are_those_of_the_members(self):
        meta = torch.device('meta')
        spec = BucketSpec.of([ParameterSpec('w', (3,), torch.float16, meta)], None)
        assert (spec.dtype, spec.device, spec.nbytes) == (torch.float16, meta, 6)

    def test_any_iterable_of_parameters_and_any_sequence_as_shape(self):
        spec = BucketSpec.of(iter(PARAMETERS), SPARSE)
        assert spec == spec_for()
        assert BucketSpec.of([ParameterSpec('w', torch.zeros(2, 3).shape)], None) == BucketSpec.of(
            [ParameterSpec('w', (2, 3))], None
        )

    def test_a_parameter_without_elements_takes_no_room(self):
        spec = BucketSpec.of([ParameterSpec('none', (0, 3)), ParameterSpec('one', (1,))], None)
        assert [member.offset for member in spec.members] == [0, 0]
        assert spec.numel == 1

    def test_of_shape_is_one_parameter(self):
        assert BucketSpec.of_shape(3, 4, schedule=SPARSE) == BucketSpec(
            (MemberSpec('weight', (3, 4), 0),), torch.float32, CPU, SPARSE, 0.01
        )
        assert BucketSpec.of_shape().numel == 1


class TestDensity:
    def test_it_is_that_after_the_warm_up(self):
        assert spec_for().density == spec_for().requested == 0.01

    def test_none_is_uncompressed(self):
        assert spec_for(None).density is spec_for(None).requested is None
        ends_uncompressed = spec_for(DensitySchedule(None, 1, [0.1]))
        assert ends_uncompressed.density is None and ends_uncompressed.schedule is not None

    def test_a_planner_may_deviate_from_what_was_requested(self):
        spec = spec_for(DensitySchedule(0.05), requested=SPARSE)
        assert (spec.density, spec.requested) == (0.05, 0.01)


class TestValue:
    def test_equal_contents_are_equal_and_have_equal_hashes(self):
        one = BucketSpec.of(PARAMETERS, DensitySchedule(0.01))
        other = BucketSpec.of(PARAMETERS, DensitySchedule(0.01))
        assert one == other and hash(one) == hash(other) and repr(one) == repr(other)
        assert len({one, other}) == 1
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one

    @pytest.mark.parametrize(
        'other',
        [
            BucketSpec.of(PARAMETERS[::-1], SPARSE),
            BucketSpec.of(PARAMETERS[1:], SPARSE),
            BucketSpec.of([PARAMETERS[0]._replace(shape=(4, 3)), *PARAMETERS[1:]], SPARSE),
            BucketSpec.of([PARAMETERS[0]._replace(name='w'), *PARAMETERS[1:]], SPARSE),
            BucketSpec.of([each._replace(dtype=torch.float16) for each in PARAMETERS], SPARSE),
            BucketSpec.of([each._replace(device=torch.device('meta')) for each in PARAMETERS],
                          SPARSE),
            spec_for(None),
            spec_for(DensitySchedule(0.01)),
            spec_for(SPARSE, requested=DensitySchedule(0.02)),
        ],
    )  # fmt: skip
    def test_any_difference_makes_it_another(self, other):
        """Ranks compare the text of their specs before training."""
        assert other != spec_for() and repr(other) != repr(spec_for())

    def test_it_does_not_change(self):
        with pytest.raises(AttributeError):
            spec_for().schedule = None


class TestBetween:
    def test_offsets_begin_at_0_again(self):
        spec = spec_for()
        assert spec.between(1, 3).members == (
            MemberSpec('scale', (), 0),
            MemberSpec('conv', (2, 3, 2, 2), 1),
        )
        assert spec.between(1, 3).numel == 25

    def test_everything_else_stays(self):
        spec = spec_for(SPARSE, requested=DensitySchedule(0.02))
        part = spec.between(2, 4)
        assert (part.dtype, part.device) == (spec.dtype, spec.device)
        assert (part.schedule, part.requested) == (spec.schedule, 0.02)
        assert spec == spec_for(SPARSE, requested=DensitySchedule(0.02))  # as it was

    def test_all_of_it_is_itself(self):
        assert spec_for().between(0, 4) == spec_for()

    @pytest.mark.parametrize('cut', [1, 2, 3])
    def test_parts_are_those_of_the_parameters_by_themselves(self, cut):
        assert spec_for().between(0, cut) == BucketSpec.of(PARAMETERS[:cut], SPARSE)
        assert spec_for().between(cut, 4) == BucketSpec.of(PARAMETERS[cut:], SPARSE)
        again = spec_for().between(cut - 1, 4).between(1, 5 - cut)
        assert again == BucketSpec.of(PARAMETERS[cut:], SPARSE)


class TestJson:
    @pytest.mark.parametrize(
        'spec',
        [
            spec_for(None),
            spec_for(DensitySchedule(0.01)),
            spec_for(DensitySchedule(1.0)),
            spec_for(DensitySchedule(1 / 3), requested=DensitySchedule(1e-300)),
            BucketSpec.of_shape(),
            BucketSpec.of([ParameterSpec('w', (2,), torch.bfloat16)], None),
            BucketSpec.of([ParameterSpec('none', (0, 3))], None),
        ],
    )
    def test_a_round_trip_through_text_changes_nothing(self, spec):
        assert BucketSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec

    def test_device_and_warm_up_are_left_to_the_run_that_reads_it(self):
        meta = torch.device('meta')
        spec = BucketSpec.of([ParameterSpec('w', (2,), device=meta)], SPARSE)
        assert BucketSpec.from_json(spec.to_json()) == BucketSpec.of(
            [ParameterSpec('w', (2,))], DensitySchedule(0.01)
        )

    def test_a_compressed_warm_up_to_an_uncompressed_end_stays_compressed(self):
        spec = BucketSpec.from_json(spec_for(DensitySchedule(None, 1, [0.1])).to_json())
        assert spec.schedule == DensitySchedule(None)

    def test_it_is_plain(self):
        assert BucketSpec.of_shape(3, 4, schedule=SPARSE).to_json() == {
            'parameters': {'weight': [3, 4]},
            'dtype': 'float32',
            'is_compressed': True,
            'density': 0.01,
            'requested': 0.01,
        }

    def test_the_order_of_the_parameters_is_kept(self):
        assert list(BucketSpec.of(PARAMETERS[::-1], None).to_json()['parameters']) == [
            'bias',
            'conv',
            'scale',
            'weight',
        ]

    @pytest.mark.parametrize('key', spec_for().to_json())
    def test_nothing_may_be_missing(self, key):
        content = spec_for().to_json()
        del content[key]
        with pytest.raises(KeyError, match=key):
            BucketSpec.from_json(content)

    @pytest.mark.parametrize(
        ('change', 'error'),
        [
            ({'parameters': {}}, 'a bucket has no parameters'),
            ({'parameters': {'w': ['three']}}, 'three'),
            ({'parameters': {'w': 3}}, 'not iterable'),
            ({'parameters': ['w']}, 'items'),
            ({'dtype': 'float31'}, 'float31'),
            ({'dtype': 'zeros'}, "'zeros' is no type of a parameter"),
            ({'density': 0.0}, 'must be above 0'),
            ({'density': 2.0}, 'a density is at most 1, got 2.0'),
            ({'density': 'dense'}, 'dense'),
            ({'requested': 'dense'}, 'dense'),
            ({'density': [0.1]}, 'list'),
        ],
        ids=str,
    )
    def test_what_it_did_not_write_is_refused(self, change, error):
        with pytest.raises((TypeError, ValueError, AttributeError), match=error):
            BucketSpec.from_json(spec_for(DensitySchedule(0.01)).to_json() | change)
