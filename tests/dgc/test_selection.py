"""What selections lose against random ones: exact values, bounds, and what is left out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from dgc_helpers import exact, loss, parameters, wrap

import dgc
from dgc.compressors import SampledTopK
from dgc.exchanges import SparDL
from dgc.memory import Residual
from dgc.planner import Whole
from dgc.schedule import DensitySchedule
from dgc.selection import SelectionErrors

EXCHANGED = {  # compositions in which something is selected
    'top-k by layer': lambda: exact(0.05),
    'sampled, all layers in one bucket': lambda: dgc.deep_gradient_compression(
        0.05, compressor=SampledTopK(), planner=Whole(), memory=Residual()
    ),
    'the exchange selects': lambda: exact(0.1, compressor=None, exchange=SparDL()),
}


def steps(composition: dgc.Composition, count: int = 3, measured: bool = True, size: int = 2):
    """Train some steps on simulated ranks; returns what rank 0 measured, by step, and the
    parameters of all ranks."""

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, composition, engine)
        errors = SelectionErrors(optimizer) if measured else None
        found = []
        for step in range(count):
            if errors is not None:
                errors.measures = step != 1
            optimizer.zero_grad()
            loss(named, engine.rank, step).backward()
            optimizer.step()
            found.append([] if errors is None else errors.take())
        return found, [p.detach().clone() for _, p in named]

    ranks = dgc.simulate(size, worker)
    return ranks[0][0], [each for _, values in ranks for each in values]


@pytest.mark.parametrize('make', EXCHANGED.values(), ids=EXCHANGED)
def test_no_selection_of_the_largest_loses_more_than_a_random_one(make):
    found, _ = steps(make())
    assert [bool(each) for each in found] == [True, False, True]  # the second was not measured
    for each in found[0] + found[2]:
        assert 0 <= each.topk <= 1 + 1e-12
        assert each.selected is None or each.topk <= each.selected + 1e-12
        assert 0 <= each.k < each.numel and each.random > 0
    matrices = [each for each in found[2] if each.layer == 'wide.weight']
    assert len(matrices) == 1 and 0.3 < matrices[0].topk < 0.95  # of normal numbers


def test_measuring_changes_no_bit():
    for make in EXCHANGED.values():
        _, with_it = steps(make())
        _, without = steps(make(), measured=False)
        assert all(map(torch.equal, with_it, without))


def test_errors_are_those_of_the_definition():
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.zeros(40, 5))
    composition = exact(0.1, memory=Residual())
    optimizer = wrap([('w', weight)], composition)
    errors, residual = SelectionErrors(optimizer), torch.zeros(200)
    for _ in range(3):
        errors.measures = True
        gradient = torch.randn(40, 5)
        optimizer.zero_grad()
        (weight * gradient).sum().backward()
        optimizer.step()
        x = (residual + gradient.flatten()).double()
        kept = x.abs() >= x.abs().topk(20).values[-1]
        (each,) = errors.take()
        expected = float(x[~kept].square().sum() / (0.9 * x.square().sum()))
        assert (each.layer, each.numel, each.k) == ('w', 200, 20)
        assert each.topk == pytest.approx(expected) == each.selected
        assert each.random == pytest.approx(float(0.9 * x.square().sum()))
        residual = torch.where(kept, 0, x).float()
    # That is what random selections of as many lose, in the mean.
    lost = [float(x[torch.randperm(200)[20:]].square().sum()) for _ in range(2000)]
    assert sum(lost) / len(lost) == pytest.approx(each.random, rel=0.02)


def test_uncompressed_steps_and_zeros_are_left_out():
    weight = torch.nn.Parameter(torch.zeros(64, 20))
    schedule = DensitySchedule(0.05, 1, (1.0,), stage_steps=1)  # uncompressed in the first step
    composition = dataclasses.replace(exact(memory=Residual()), schedule=schedule)
    optimizer = wrap([('w', weight)], composition)
    errors = SelectionErrors(optimizer)
    for step, factor in enumerate((1.0, 0.0, 1.0)):
        errors.measures = True
        optimizer.zero_grad()
        (factor * weight * torch.randn(64, 20)).sum().backward()
        optimizer.step()
        assert bool(errors.take()) == (step == 2), step


@pytest.mark.parametrize(
    'composition, reason',
    [
        (dgc.dense(), 'every gradient is sent uncompressed'),
        (dgc.ALGORITHMS['qsgd'].composition(), 'of every element'),
    ],
)
def test_what_selects_nothing_is_refused_by_name(composition, reason):
    optimizer = wrap(parameters(), composition)
    with pytest.raises(ValueError, match=reason):
        SelectionErrors(optimizer)
