"""Which parameters travel together."""

import torch
from dgc_helpers import parameters
from torch.nn import Parameter

from dgc.planner import BySize, PerTensor
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule

SPARSE = RatioSchedule(0.01)


def in_one_group(named, **group):
    return [(name, parameter, group) for name, parameter in named]


def sized(*numels):
    """Matrices of so many elements, in the order of a model, named after their place."""
    return in_one_group((str(i), Parameter(torch.zeros(n, 1))) for i, n in enumerate(numels))


def plan(members, planner=None, rules=None, schedule=SPARSE, buffers=()):
    return (planner or PerTensor()).plan(members, rules or LayerRules(), schedule, buffers)


def names(buckets):
    return [[member.name for member in bucket.members] for bucket in buckets]


class TestPerTensor:
    def test_a_sparse_parameter_travels_alone_last_first_and_the_rest_together(self):
        buckets = plan(in_one_group(parameters()))
        assert names(buckets) == [['narrow.weight'], ['wide.weight'], ['scale', 'bias']]
        assert [bucket.schedule for bucket in buckets] == [SPARSE, SPARSE, None]

    def test_dense_by_ratio_and_dense_by_rule_share_a_bucket(self):
        members = in_one_group(parameters())
        assert len(plan(members, schedule=RatioSchedule(1.0))) == 1
        assert len(plan(members, rules=LayerRules(dense=['*']))) == 1
        assert len(plan(members, rules=LayerRules(ratios={'*.weight': 1.5}))) == 1

    def test_a_sparse_warm_up_to_ratio_one_is_not_dense_yet(self):
        assert len(plan(in_one_group(parameters()), schedule=RatioSchedule(1.0, 1, [0.1]))) == 3

    def test_dense_buckets_are_cut_at_a_size(self):
        named = [(str(i), Parameter(torch.zeros(n))) for i, n in enumerate([1, 9, 2, 2, 2])]
        buckets = plan(in_one_group(named), PerTensor(dense_bytes=16))
        assert names(buckets) == [['4', '3'], ['2'], ['1'], ['0']]

    def test_types_and_momenta_never_share_a_bucket(self):
        def member(name, dtype=torch.float32, **group):
            return (name, Parameter(torch.zeros(2, dtype=dtype)), group)

        members = [
            member('half', torch.bfloat16),
            member('none'),
            member('heavy', momentum=0.9),
            member('nesterov', momentum=0.9, nesterov=True),
            member('decayed', weight_decay=0.1),
            member('heavy too', momentum=0.9, weight_decay=0.1),
        ]
        assert sorted(map(sorted, names(plan(members)))) == [
            ['decayed', 'none'],
            ['half'],
            ['heavy', 'heavy too'],
            ['nesterov'],
        ]

    def test_parameters_without_elements_are_left_out(self):
        named = [('none', Parameter(torch.zeros(0, 3))), ('one', Parameter(torch.zeros(1, 1)))]
        assert names(plan(in_one_group(named))) == [['one']]


class TestBySize:
    def test_neighbours_share_a_bucket_until_it_is_full(self):
        assert names(plan(sized(2, 2, 1, 2, 2), BySize(sparse_bytes=16))) == [
            ['4', '3'],
            ['2', '1'],
            ['0'],
        ]

    def test_one_larger_than_a_bucket_is_alone(self):
        assert names(plan(sized(1, 9, 1, 1), BySize(sparse_bytes=16))) == [['3', '2'], ['1'], ['0']]

    def test_what_stays_dense_is_apart_and_last(self):
        buckets = plan(in_one_group(parameters()), BySize())
        assert names(buckets) == [['narrow.weight', 'wide.weight'], ['scale', 'bias']]
        assert [bucket.schedule for bucket in buckets] == [SPARSE, None]

    def test_ratios_never_share_a_bucket(self):
        rules = LayerRules(ratios={'1': 0.5, '3': 0.5})
        assert names(plan(sized(2, 2, 2, 2), BySize(), rules)) == [['3', '1'], ['2', '0']]

    def test_buckets_are_listed_by_their_last_parameter(self):
        """The one that was opened first may be the last to be complete."""
        rules = LayerRules(ratios={'0': 0.5, '3': 0.5})
        assert names(plan(sized(2, 2, 2, 2), BySize(), rules)) == [['2', '1'], ['3', '0']]
