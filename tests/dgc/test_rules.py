import pytest
import torch

from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule


@pytest.mark.parametrize('shape', [(), (100_000,)])
def test_fewer_than_two_dimensions_are_dense(shape):
    assert LayerRules().is_dense('bias', torch.zeros(shape))


def test_two_dimensions_are_sparse_unless_a_rule_says_otherwise():
    assert not LayerRules().is_dense('weight', torch.zeros(1, 1))


def test_patterns_keep_layers_dense():
    rules = LayerRules(dense=['features.0.*', '*.head'])
    names = ['features.0.weight', 'features.10.weight', 'a.head', 'head', 'FEATURES.0.weight']
    assert [rules.is_dense(name, torch.zeros(2, 2)) for name in names] == [
        True,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(('numel', 'dense'), [(99, True), (100, False), (101, False)])
def test_small_parameters_are_dense(numel, dense):
    assert LayerRules(min_numel=100).is_dense('weight', torch.zeros(1, numel)) is dense


def test_the_first_pattern_that_matches_gives_the_ratio_and_the_warm_up_stays():
    rules = LayerRules(ratios={'layer1.*': 0.1, 'layer*': 0.2})
    default = RatioSchedule(0.01, 2, stage_steps=5)
    assert rules.schedule('layer1.weight', default) == RatioSchedule(0.1, 2, stage_steps=5)
    assert rules.schedule('layer2.weight', default) == RatioSchedule(0.2, 2, stage_steps=5)
    assert rules.schedule('head', default) is default


def test_an_impossible_ratio_of_a_layer_is_refused():
    with pytest.raises(ValueError, match='must be above 0'):
        LayerRules(ratios={'*': 0.0}).schedule('weight', RatioSchedule(0.01))
