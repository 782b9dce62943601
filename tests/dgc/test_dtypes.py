"""Types of parameters, and torch's default type: what is averaged, refused, and always float32."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dgc_helpers import exact, parameters, train, values, wrap
from torch import nn

import dgc
from dgc import ops
from dgc.algorithms import ALGORITHMS, Kind
from dgc.calibration import calibrate_path
from dgc.control import GraVAC, LGreCo
from dgc.costmodel import Network
from dgc.engines import LocalEngine
from dgc.memory import Residual
from dgc.parameter_server import WorkerOptimizer, dual_way
from dgc.planner import BySize

SYNCHRONOUS = [row for row in ALGORITHMS.values() if row.kind is Kind.SYNCHRONOUS]


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def other_default(request):
    """Sets torch's default type for one test."""
    before = torch.get_default_dtype()
    yield lambda: torch.set_default_dtype(request.param)
    torch.set_default_dtype(before)


def tensors_of(state) -> list[torch.Tensor]:
    """All tensors in nested dictionaries and lists, in order."""
    if isinstance(state, torch.Tensor):
        return [state]
    nested = state.values() if isinstance(state, dict) else state
    return [t for each in nested if isinstance(each, dict | list | torch.Tensor)
            for t in tensors_of(each)]  # fmt: skip


def trained(row) -> list[torch.Tensor]:
    """``trained_by`` of a row of the table."""
    return trained_by(replace(row.composition(0.05), planner=BySize()))  # no measurement


def trained_by(composition) -> list[torch.Tensor]:
    """Parameters and all state after three steps of two ranks; a float32 model."""

    def worker(engine):
        named = [(name, nn.Parameter(p.detach().clone())) for name, p in MODEL]
        optimizer = wrap(named, composition, engine, momentum=0.0, steps_per_epoch=1)
        for step in range(3):
            optimizer.zero_grad()
            draw = torch.Generator().manual_seed(10 * engine.rank + step)
            loss = sum(
                (p * torch.randn(p.shape, generator=draw, dtype=torch.float32).pow(3)).sum()
                for _, p in named
            )
            loss.backward()
            optimizer.step()
        return values(named) + tensors_of(optimizer.reducer.state_dict())

    return [tensor for found in dgc.simulate(2, worker) for tensor in found]


MODEL = parameters()


@pytest.mark.parametrize('row', SYNCHRONOUS, ids=lambda row: row.name)
def test_the_default_type_changes_no_bit(row, other_default):
    """docs/failures.md, row 2: memories and sums took torch's default type."""
    expected = trained(row)
    other_default()
    for found, wanted in zip(trained(row), expected, strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


def test_the_default_type_changes_no_bit_in_plain_pytorch(other_default):
    """docs/failures.md, row 2."""
    with ops.unfused():
        expected = trained(ALGORITHMS['dgc'])
    other_default()
    with ops.unfused():
        assert all(map(torch.equal, trained(ALGORITHMS['dgc']), expected))


WITH_NUMBERS_OF_THEIR_OWN = {
    'dgc': exact(0.05),
    'sign': ALGORITHMS['ef-sign-sgd'].composition(0.05),
    'fp4': ALGORITHMS['sparse-loco'].make(values='fp4'),
    'l-greco': exact(0.05, control=LGreCo(every=1)),
    'gravac': exact(0.05, control=GraVAC(window=1)),
}


def digests() -> dict[str, str]:
    """Of ``trained_by`` each of them."""
    found = {name: trained_by(parts) for name, parts in WITH_NUMBERS_OF_THEIR_OWN.items()}
    return {
        name: hashlib.sha256(b''.join(t.numpy().tobytes() for t in tensors)).hexdigest()
        for name, tensors in found.items()
    }


@pytest.mark.parametrize('default', ['float64', 'bfloat16'])
def test_a_default_type_from_before_the_import_changes_no_bit(default):
    """Numbers that are computed once, at the import or at the first use, took it."""
    code = f"""
import json, torch
torch.set_default_dtype(torch.{default})
import dgc
torch.set_default_dtype(torch.float32)
from test_dtypes import digests
torch.set_default_dtype(torch.{default})
print(json.dumps(digests()))
"""
    paths = [str(Path(__file__).parent), str(Path(dgc.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, '-c', code],
        env=os.environ | {'PYTHONPATH': os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == digests()


def test_the_default_type_changes_no_measured_time(other_default):
    """docs/failures.md, row 2: bfloat16 has no thousandths of a second."""
    other_default()

    def worker(engine):
        return calibrate_path(dgc.dense(), engine, 3000, torch.device('cpu'))

    alpha = 1.234567
    costs = dgc.simulate(2, worker, Network(alpha=alpha, beta=0.0))[0]
    assert costs.dense.exchange.fixed == pytest.approx(2 * alpha, rel=1e-3)


def complex_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4, dtype=torch.complex64), nn.Linear(4, 2))


@pytest.mark.parametrize('make', [dgc.dense, exact, lambda: exact(memory=Residual())])
def test_complex_parameters_are_refused_by_name(make):
    """docs/failures.md, row 1: the imaginary part of their gradients was lost."""
    model = complex_model()
    match = r'the type complex64 of 0\.weight, 0\.bias is not supported.*view_as_real'
    with pytest.raises(ValueError, match=match):
        wrap(list(model.named_parameters()), make())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in '12']
    with pytest.raises(ValueError, match=match):
        dgc.LocalSteps(*optimizers, model.named_parameters(), engine=LocalEngine())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r'0\.weight, 0\.bias: .* float32'):
        WorkerOptimizer(sgd, model.named_parameters(), [], dual_way(), None)


def test_types_that_no_sum_holds_are_refused_by_name():
    """docs/failures.md, row 1."""
    weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.float8_e4m3fn))
    with pytest.raises(ValueError, match='the type float8_e4m3fn of narrow is not supported'):
        wrap([('narrow', weight), *parameters()], dgc.dense())


def test_frozen_parameters_may_be_complex_and_are_those_of_rank_0():
    """docs/failures.md, row 1."""

    def worker(engine):
        torch.manual_seed(engine.rank)
        model = complex_model()
        model[0].requires_grad_(False)
        trained = list(model[1].parameters())
        sgd = torch.optim.SGD(trained, lr=0.1)
        dgc.DistributedOptimizer(sgd, model.named_parameters(), dgc.dense(), engine)
        return [p.detach().clone() for p in model.parameters()]

    one, other = dgc.simulate(2, worker)
    assert all(map(torch.equal, one, other))
    assert one[0].is_complex() and one[0].imag.abs().max() > 0


@pytest.mark.parametrize('make', [dgc.dense, exact])
def test_that_float64_gradients_lose_precision_is_said(make):
    """docs/failures.md, row 2."""
    named = [*parameters(dtype=torch.float64), ('single', nn.Parameter(torch.zeros(3)))]
    with pytest.warns(UserWarning, match='the float64 gradients of wide.weight, .* in float32'):
        optimizer = wrap(named, make())
    train(optimizer, named, 1)
    assert named[0][1].dtype == torch.float64


def test_other_types_raise_no_warning(recwarn):
    wrap(parameters(dtype=torch.bfloat16), exact())
    wrap(parameters(), exact())
    assert [each for each in recwarn if 'averaged in float32' in str(each.message)] == []


def test_one_element_of_any_stride_is_broadcast():
    """Such a tensor counts as contiguous, and cannot be viewed as bytes."""

    def worker(engine):
        one = torch.arange(8.0)[engine.rank :: 4][1:]
        dgc.broadcast_tensors(engine, [one])
        return float(one)

    assert dgc.simulate(2, worker) == [4.0, 4.0]
