"""Settings of a wrong type are refused in the words of the user, before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dgc_helpers import parameters, wrap

import dgc
from dgc.checks import check_number
from dgc.clipping import ClipByModelNorm
from dgc.compressors import SampledTopK
from dgc.engines import LocalEngine
from dgc.exchanges import GTopK
from dgc.memory import Residual
from dgc.parameter_server import dual_way
from dgc.schedule import DensitySchedule

D = dgc.deep_gradient_compression


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (
            lambda: D(compress_ratio='0.001'),
            "compress_ratio must be a number, got '0.001': write compress_ratio=0.001, without "
            'quotes',
        ),
        (lambda: D(compress_ratio='1%'), "compress_ratio must be a number, got '1%'"),
        (lambda: D(compress_ratio=None), 'compress_ratio must be a number, got None'),
        (lambda: D(compress_ratio=True), 'compress_ratio must be a number, got True'),
        (lambda: D(compress_ratio=[0.1]), 'compress_ratio must be a number, got an object of the '
         'class list'),
        (lambda: D(warmup_epochs='5'), "warmup_epochs must be a number, got '5': write "
         'warmup_epochs=5, without quotes'),
        (lambda: D(warmup_steps='5'), "warmup_steps must be a number, got '5': write "
         'warmup_steps=5, without quotes'),
        (lambda: D(warmup_epochs=2, warmup_coeff='0.1'), "warmup_coeff must be a number, got '0.1'"
         ': write warmup_coeff=0.1, without quotes'),
        (lambda: D(warmup_epochs=2, warmup_coeff=[0.1, 'x']), 'warmup_coeff must be a number, got '
         "'x'"),
        (lambda: DensitySchedule('0.1'), "density must be a number, got '0.1': write density=0.1, "
         'without quotes'),
        (lambda: dual_way('0.01'), "compress_ratio must be a number, got '0.01': write "
         'compress_ratio=0.01, without quotes'),
        (
            lambda: D(exchange='GTopK'),
            "exchange must be an object of the class Exchange, got 'GTopK': write "
            'exchange=GTopK(…), imported from dgc.exchanges',
        ),
        (
            lambda: D(exchange='gtopk-doubling'),
            "exchange must be an object of the class Exchange, got 'gtopk-doubling': write "
            'exchange=GTopKDoubling(…), imported from dgc.exchanges',
        ),
        (
            lambda: D(exchange=GTopK),
            'exchange must be an object of the class Exchange, got the class GTopK itself: write '
            'exchange=GTopK(…)',
        ),
        (
            lambda: D(exchange=''),
            "exchange must be an object of the class Exchange, got '': write exchange=AllGather()",
        ),
        (lambda: dgc.Composition(exchange='unheard of'), 'exchange must be an object of the class '
         "Exchange, got 'unheard of': write exchange=AllGather()"),
        (lambda: D(memory=Residual), 'memory must be an object of the class Memory, got the class '
         'Residual itself: write memory=Residual(…)'),
        (lambda: D(memory='residual'), 'memory must be an object of the class Memory, got '
         "'residual': write memory=Residual(…), imported from dgc.memory"),
        (lambda: D(compressor=SampledTopK), 'compressor must be an object of the class Compressor, '
         'got the class SampledTopK itself: write compressor=SampledTopK(…)'),
        (lambda: D(codec='int8'), 'codec must be an object of the class Codec, got '
         "'int8': write codec=Codec('int8', 'packed')"),
        (lambda: D(planner='Merged'), 'planner must be an object of the class Planner, got '
         "'Merged': write planner=Merged(…), imported from dgc.planner"),
        (lambda: D(rules={'w*': 0.1}), 'rules must be an object of the class LayerRules, got an '
         'object of the class dict: write rules=LayerRules()'),
        (lambda: D(gradient_clipping=0.5), 'gradient_clipping must be an object of the class '
         'Clipping, got 0.5: write gradient_clipping=ClipByModelNorm(1.0)'),
        (lambda: dgc.dense(ClipByModelNorm), 'gradient_clipping must be an object of the class '
         'Clipping, got the class ClipByModelNorm itself: write '
         'gradient_clipping=ClipByModelNorm(…)'),
        (lambda: dgc.Composition(schedule=0.01), 'schedule must be an object of the class '
         'DensitySchedule, got 0.01: write schedule=DensitySchedule(0.001)'),
        (lambda: dgc.Composition(transform='dct'), 'transform must be an object of the class '
         "Transform, got 'dct': write transform=BlockDCT()"),
    ],
)  # fmt: skip
def test_a_setting_of_a_composition(make, message):
    """docs/failures.md, row 18."""
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ('composition', 'got'),
    [
        ('dgc', "got 'dgc'"),
        (0.001, 'got 0.001'),
        (0, 'got 0'),
        (dgc.Composition, 'got the class Composition itself'),
        (dual_way(), 'got an object of the class Asynchronous'),
        (dgc.dense, r'got the function dense itself: write composition=dense\(…\)'),
    ],
)
def test_a_composition_that_is_none(composition, got):
    """docs/failures.md, row 18."""
    named = parameters()
    inner = torch.optim.SGD([p for _, p in named], lr=0.1)
    match = f'^composition must be an object of the class Composition, {got}'
    with pytest.raises(TypeError, match=match):
        dgc.DistributedOptimizer(inner, named, composition, LocalEngine())
    with pytest.raises(TypeError, match=match):
        dgc.LocalSteps(inner, inner, named, composition, LocalEngine())


@pytest.mark.parametrize(
    ('given', 'got'),
    [
        (lambda named: (p for _, p in named), r'got an object of the class Parameter, as of model'),
        (lambda named: [n for n, _ in named], r"got 'wide.weight', among them"),
        (lambda named: named[0][1], r'got an object of the class Parameter: write'),
        (lambda named: 3, r'got 3: write'),
        (lambda named: torch.nn.Linear(2, 2), r'got an object of the class Linear: write'),
        (lambda named: [(p, n) for n, p in named], r'got an object of the class tuple, among'),
    ],
)
def test_named_parameters_without_names(given, got):
    """docs/failures.md, row 18: named_parameters=model.parameters()."""
    named = parameters()
    inner = torch.optim.SGD([p for _, p in named], lr=0.1)
    match = f'^named_parameters must be pairs of a name and a parameter, {got}.*named_parameters()'
    with pytest.raises(TypeError, match=match):
        dgc.DistributedOptimizer(inner, given(named), dgc.dense(), LocalEngine())
    with pytest.raises(TypeError, match=match):
        dgc.LocalSteps(inner, inner, given(named), engine=LocalEngine())


def test_named_parameters_that_were_read_before():
    """docs/failures.md, row 18: a generator is empty the second time."""
    model = torch.nn.Linear(2, 2)
    named = model.named_parameters()
    list(named)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match='named_parameters is empty'):
        dgc.DistributedOptimizer(inner, named, dgc.dense(), LocalEngine())


def test_named_parameters_may_be_a_dictionary():
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    named = dict(model.named_parameters())
    wrapped = dgc.DistributedOptimizer(inner, named, dgc.dense(), LocalEngine())
    assert len(wrapped.buckets[0].members) == 2


def test_an_engine_and_an_optimizer_that_are_none():
    """docs/failures.md, row 18."""
    with pytest.raises(TypeError, match=r"^engine must be .* got 'torch': write engine=dgc.create"):
        wrap(parameters(), dgc.dense(), 'torch')
    with pytest.raises(TypeError, match=r'^optimizer must be .* got the class SGD itself: write'):
        dgc.DistributedOptimizer(torch.optim.SGD, parameters(), dgc.dense(), LocalEngine())


@pytest.mark.parametrize('number', [1, 0.5, np.float32(0.5), np.int64(3), torch.tensor(0.5)])
def test_numbers_of_all_kinds_are_numbers(number):
    check_number('x', number)
    assert D(number).schedule.density in (None, 0.5, pytest.approx(1 / 3))
