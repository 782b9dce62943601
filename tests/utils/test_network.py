"""Weights of a file: what is copied, and what is said about one that does not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from utils.checkpoint import Position
from utils.config import ConfigError
from utils.network import load_pretrained, read_weights
from utils.search import Saved


def network(classes: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))


@pytest.mark.parametrize('wrap', [dict, lambda state: {'model': state, 'epoch': 3},
                                  lambda state: {'state_dict': state}])  # fmt: skip
def test_weights_and_buffers_are_copied(wrap, tmp_path):
    source, target = network(), network()
    source[1].running_mean.fill_(7)
    torch.save(wrap(source.state_dict()), tmp_path / 'w')
    load_pretrained(target, tmp_path / 'w')
    for name, tensor in source.state_dict().items():
        assert target.state_dict()[name].equal(tensor), name


def test_an_average_is_preferred_to_the_weights(tmp_path):
    source, average, target = network(), network(), network()
    torch.save({'model': source.state_dict(), 'ema': average.state_dict()}, tmp_path / 'w')
    load_pretrained(target, tmp_path / 'w')
    assert target[0].weight.equal(average[0].weight)


MODEL, AGREED, EMA = ({name: torch.full((2,), value) for name in names}
                      for names, value in (('wvb', 1.0), ('wv', 2.0), ('wvb', 3.0)))  # fmt: skip


@pytest.mark.parametrize(
    ('more', 'expected'),
    [
        ({}, MODEL),
        ({'optimizer': {'state': {}, 'param_groups': []}}, MODEL),
        ({'optimizer': {'agreed': AGREED}}, {**MODEL, **AGREED}),
        ({'ema': EMA}, EMA),
        ({'optimizer': {'agreed': AGREED}, 'ema': EMA}, EMA),
        ({'optimizer': None, 'ema': None}, MODEL),  # of another program
    ],
)
def test_a_checkpoint_gives_the_weights_that_were_evaluated(more, expected, tmp_path):
    state = {'model': MODEL, 'rate_factor': 1.0, **more}
    torch.save(state, tmp_path / 'w')
    found = read_weights(tmp_path / 'w', 'file')
    evaluated = Saved(tmp_path, Position(1), 1, state).model()
    assert found.keys() == evaluated.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor) and torch.equal(evaluated[name], tensor), name


def test_skipped_names_stay_as_they_are_built(tmp_path):
    source, target = network(classes=10), network(classes=3)
    before = target[2].weight.detach().clone()
    torch.save(source.state_dict(), tmp_path / 'w')
    load_pretrained(target, tmp_path / 'w', ['2.*'])
    assert target[2].weight.equal(before) and target[0].weight.equal(source[0].weight)


def changed(state: dict, name: str) -> dict:
    del state['0.bias']
    return {**state, 'fc.weight': torch.zeros(1), '2.weight': torch.zeros(10, 5)}


@pytest.mark.parametrize(
    ('content', 'skip', 'message'),
    [
        (lambda s: {n: t for n, t in s.items() if n != '0.bias'}, (), '0.bias is missing in it'),
        (lambda s: {**s, 'fc.bias': s['0.bias']}, (), 'fc.bias is not in the model'),
        (
            lambda s: {**s, '2.weight': torch.zeros(10, 5)}, (),
            '2.weight (10, 5) for (3, 5) has another shape',
        ),
        (dict, ('fc.*',), "configs.pretrained.skip: 'fc.*' is no name in the model or in "),
        (lambda s: {'epoch': 3}, (), 'holds no state of a model'),
        (lambda s: {}, (), 'holds no state of a model'),
        (lambda s: [torch.zeros(1)], (), 'holds no state of a model'),
        (lambda s: nn.Linear(2, 2), (), 'cannot be read as weights'),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused_in_one_line(content, skip, message, tmp_path):
    model = network()
    before = model[0].weight.detach().clone()
    torch.save(content(network().state_dict()), tmp_path / 'w')
    with pytest.raises(ConfigError) as caught:
        load_pretrained(model, tmp_path / 'w', skip)
    assert message in str(caught.value) and 'configs.pretrained.' in str(caught.value)
    assert model[0].weight.equal(before)


@pytest.mark.parametrize(
    ('content', 'name'),
    [
        (lambda s: {n: t for n, t in s.items() if n != '0.bias'}, '0.bias'),
        (lambda s: {**s, 'aux.weight': torch.zeros(1)}, 'aux.weight'),
        (lambda s: {**s, '2.weight': torch.zeros(10, 5)}, '2.weight'),
    ],
    ids=['missing in the file', 'not in the model', 'another shape'],
)
def test_what_does_not_fit_may_be_skipped_as_the_error_says(content, name, tmp_path):
    source, model = network(), network()
    torch.save(content(source.state_dict()), tmp_path / 'w')
    with pytest.raises(ConfigError, match=f'{name}.*: choose its model, or name .*skip$'):
        load_pretrained(model, tmp_path / 'w')
    load_pretrained(model, tmp_path / 'w', [name])
    for copied in source.state_dict().keys() - {name}:
        assert model.state_dict()[copied].equal(source.state_dict()[copied]), copied


def test_code_in_a_file_is_not_run(tmp_path):
    class Bad:
        def __reduce__(self):
            return (pytest.fail, ('code of a file was run',))

    torch.save({'0.weight': Bad()}, tmp_path / 'w')
    with pytest.raises(ConfigError, match='cannot be read as weights'):
        load_pretrained(network(), tmp_path / 'w')


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match='there is no such file'):
        load_pretrained(network(), tmp_path / 'w')
