"""Which parameters share a bucket."""

import torch
from dgc_helpers import parameters, request
from torch.nn import Parameter

from dgc.bucket_spec import ParameterSpec
from dgc.planner import BySize, PerTensor, PlanRequest
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule

SPARSE = DensitySchedule(0.01)


def sized(*numels):
    """Matrices of so many elements, in the order of a model, named after their place."""
    return [(str(place), Parameter(torch.zeros(n, 1))) for place, n in enumerate(numels)]


def plan(named, planner=None, rules=None, schedule=SPARSE):
    return (planner or PerTensor()).plan(request(named, rules, schedule))


def names(buckets):
    return [list(bucket.names) for bucket in buckets]


class TestPerTensor:
    def test_a_compressed_parameter_is_alone_last_first_and_the_others_share(self):
        buckets = plan(parameters())
        assert names(buckets) == [['narrow.weight'], ['wide.weight'], ['scale', 'bias']]
        assert [bucket.schedule for bucket in buckets] == [SPARSE, SPARSE, None]

    def test_uncompressed_by_density_or_by_rule_they_share_a_bucket(self):
        named = parameters()
        assert len(plan(named, schedule=DensitySchedule())) == 1
        assert len(plan(named, rules=LayerRules(dense=['*']))) == 1
        assert len(plan(named, rules=LayerRules(ratios={'*.weight': 1}))) == 1

    def test_a_compressed_warm_up_to_an_uncompressed_end_is_compressed_for_now(self):
        assert len(plan(parameters(), schedule=DensitySchedule(None, 1, [0.1]))) == 3

    def test_at_density_1_everything_is_compressed_as_at_any_other(self):
        buckets = plan(parameters(), schedule=DensitySchedule(1.0))
        assert [bucket.density for bucket in buckets] == [1.0, 1.0, None]

    def test_uncompressed_buckets_are_cut_at_a_size(self):
        named = [(str(i), Parameter(torch.zeros(n))) for i, n in enumerate([1, 9, 2, 2, 2])]
        buckets = plan(named, PerTensor(dense_bytes=16))
        assert names(buckets) == [['4', '3'], ['2'], ['1'], ['0']]

    def test_types_devices_and_momenta_never_share_a_bucket(self):
        asked = PlanRequest(
            [
                ParameterSpec('half', (2,), torch.bfloat16),
                ParameterSpec('none', (2,)),
                ParameterSpec('heavy', (2,), momentum=0.9),
                ParameterSpec('nesterov', (2,), momentum=0.9, nesterov=True),
                ParameterSpec('decayed', (2,)),
                ParameterSpec('heavy too', (2,), momentum=0.9),
                ParameterSpec('on a GPU', (2,), device=torch.device('cuda')),
            ],
            LayerRules(),
            SPARSE,
        )
        assert sorted(map(sorted, names(PerTensor().plan(asked)))) == [
            ['decayed', 'none'],
            ['half'],
            ['heavy', 'heavy too'],
            ['nesterov'],
            ['on a GPU'],
        ]

    def test_parameters_without_elements_are_left_out(self):
        named = [('none', Parameter(torch.zeros(0, 3))), ('one', Parameter(torch.zeros(1, 1)))]
        assert names(plan(named)) == [['one']]


class TestBySize:
    def test_neighbours_share_a_bucket_until_it_is_full(self):
        assert names(plan(sized(2, 2, 1, 2, 2), BySize(sparse_bytes=16))) == [
            ['4', '3'],
            ['2', '1'],
            ['0'],
        ]

    def test_one_larger_than_a_bucket_is_alone(self):
        assert names(plan(sized(1, 9, 1, 1), BySize(sparse_bytes=16))) == [['3', '2'], ['1'], ['0']]

    def test_what_stays_uncompressed_is_apart_and_last(self):
        buckets = plan(parameters(), BySize())
        assert names(buckets) == [['narrow.weight', 'wide.weight'], ['scale', 'bias']]
        assert [bucket.schedule for bucket in buckets] == [SPARSE, None]

    def test_densities_never_share_a_bucket(self):
        rules = LayerRules(ratios={'1': 0.5, '3': 0.5})
        assert names(plan(sized(2, 2, 2, 2), BySize(), rules)) == [['3', '1'], ['2', '0']]

    def test_buckets_are_listed_by_their_last_parameter(self):
        """The one that was opened first may be the last to be complete."""
        rules = LayerRules(ratios={'0': 0.5, '3': 0.5})
        assert names(plan(sized(2, 2, 2, 2), BySize(), rules)) == [['2', '1'], ['3', '0']]
