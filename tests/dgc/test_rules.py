import pytest
import torch
from dgc_helpers import parameters, plan_buckets, wrap

import dgc
from dgc.parameter_server import dual_way
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


@pytest.mark.parametrize('shape', [(), (100_000,)])
def test_fewer_than_two_dimensions_are_never_compressed(shape):
    assert LayerRules().is_dense('bias', shape)


def test_two_dimensions_are_compressed_unless_a_rule_says_otherwise():
    assert not LayerRules().is_dense('weight', (1, 1))


@pytest.mark.parametrize(
    ('min_dims', 'compressed'),
    [(0, [(), (5,), (5, 5), (2, 3, 4)]), (1, [(5,), (5, 5), (2, 3, 4)]), (3, [(2, 3, 4)])],
)
def test_the_least_number_of_dimensions_may_be_set(min_dims, compressed):
    rules = LayerRules(min_dims=min_dims)
    shapes = [(), (5,), (5, 5), (2, 3, 4)]
    assert [shape for shape in shapes if not rules.is_dense('weight', shape)] == compressed


def test_without_a_least_number_of_dimensions_other_rules_still_count():
    rules = LayerRules(dense=['head'], min_numel=10, min_dims=0)
    assert rules.is_dense('head', (20,))
    assert rules.is_dense('scale', ())
    assert not rules.is_dense('bias', (10,))


def test_patterns_keep_layers_uncompressed():
    rules = LayerRules(dense=['features.0.*', '*.head'])
    names = ['features.0.weight', 'features.10.weight', 'a.head', 'head', 'FEATURES.0.weight']
    assert [rules.is_dense(name, (2, 2)) for name in names] == [
        True,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(('numel', 'dense'), [(99, True), (100, False), (101, False)])
def test_small_parameters_are_never_compressed(numel, dense):
    assert LayerRules(min_numel=100).is_dense('weight', (1, numel)) is dense


def test_the_first_pattern_that_matches_gives_the_ratio_and_the_warm_up_stays():
    rules = LayerRules(ratios={'layer1.*': 0.1, 'layer*': 0.2})
    default = DensitySchedule(0.01, 2, stage_steps=5)
    assert rules.schedule('layer1.weight', default) == DensitySchedule(0.1, 2, stage_steps=5)
    assert rules.schedule('layer2.weight', default) == DensitySchedule(0.2, 2, stage_steps=5)
    assert rules.schedule('head', default) is default


@pytest.mark.parametrize(('ratio', 'density'), [(20, 0.05), (1, None), (1.0, None), (0.5, 0.5)])
def test_the_ratio_of_a_layer_may_be_an_inverse_or_uncompressed(ratio, density):
    found = LayerRules(ratios={'*': ratio}).schedule('weight', DensitySchedule(0.01))
    assert found.density == density


def test_an_impossible_ratio_of_a_layer_is_refused():
    with pytest.raises(ValueError, match='must be above 0'):
        LayerRules(ratios={'*': 0.0}).schedule('weight', DensitySchedule(0.01))


@pytest.mark.parametrize('ratio', [1000, 0.001])
def test_a_ratio_above_1_is_an_inverse_here_too(ratio):
    """docs/failures.md, row 10: it meant uncompressed."""
    rules = LayerRules(ratios={'w*': ratio})
    bucket = plan_buckets(parameters(), dgc.deep_gradient_compression(0.5, rules=rules))[-2]
    assert (bucket.spec.names, bucket.spec.density) == (('wide.weight',), 0.001)


@pytest.mark.parametrize('rules', [LayerRules(['nowhere.*']), LayerRules(ratios={'nowhere.*': 9})])
@pytest.mark.parametrize('make', [dgc.dense, dgc.deep_gradient_compression])
def test_a_pattern_that_matches_nothing_is_refused_when_wrapping(rules, make):
    """docs/failures.md, row 10."""
    composition = make()
    composition.rules = rules
    setting = 'dense' if rules.dense else 'ratios'
    match = (
        rf"rules\.{setting} has the pattern 'nowhere\.\*', which matches no parameter of the "
        r'model: its parameters are wide\.weight, narrow\.weight, bias, scale'
    )
    with pytest.raises(ValueError, match=match):
        wrap(parameters(), composition)


def test_a_pattern_may_match_what_is_frozen():
    named = parameters()
    named[0][1].requires_grad_(False)
    wrap(named, dgc.deep_gradient_compression(rules=LayerRules(dense=['wide.*'])))


def test_a_parameter_server_refuses_such_a_pattern_too():
    """docs/failures.md, row 10."""
    named = parameters()
    sgd = torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match='matches no parameter'):
        dual_way(rules=LayerRules(dense=['nowhere'])).trained(sgd, named)


@pytest.mark.parametrize(
    ('settings', 'error', 'match'),
    [
        ({'dense': 'head*'}, TypeError, r"rules\.dense must be .* write dense=\['head\*'\]"),
        ({'ratios': [0.1]}, TypeError, r'rules\.ratios must be a dictionary'),
        ({'ratios': {'w*': '0.1'}}, TypeError, r"rules\.ratios\['w\*'\] must be a number"),
        ({'ratios': {'w*': -1}}, ValueError, r"rules\.ratios\['w\*'\] must be above 0, got -1"),
        ({'min_numel': '9'}, TypeError, r'rules\.min_numel must be a number'),
    ],
)
def test_rules_that_are_none(settings, error, match):
    """docs/failures.md, row 10: each character of 'head*' was a pattern, and '*' matches all."""
    with pytest.raises(error, match=match):
        LayerRules(**settings)
