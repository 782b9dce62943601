"""Losses of optimizers: what is trained, that a measurement goes on, and the table."""

from __future__ import annotations

import json

import pytest

from bench import optimizer_runs
from bench.optimizer_runs import ROWS, Run, Text, composition, muon_and_adamw, rate_at
from bench.optimizers import NAMES, main, parse, runs, table
from dgc.memory import MomentumCorrection, Residual
from dgc.schedule import DensitySchedule

SHORT = ['--steps', '2', '--workers', '2', '--batch', '1', '--warmup-steps', '0,1']


@pytest.fixture
def words(tmp_path):
    """The options that every command line needs."""
    (tmp_path / 'text').write_text('To be, or not to be, that is the question. ' * 300)
    return ['--text', str(tmp_path / 'text'), '--results', str(tmp_path / 'results')]


def test_every_row_has_a_name():
    assert tuple(ROWS) == NAMES


def test_each_row_is_trained_dense_and_with_each_warm_up(words):
    asked = list(runs(parse([*words, '--only', 'sgd', '--warmup-steps', '0,9', '--seeds', '2'])))
    assert [(r.seed, r.density, r.warmup_steps) for r in asked] == [
        (0, 1.0, 0), (0, 0.01, 0), (0, 0.01, 9), (1, 1.0, 0), (1, 0.01, 0), (1, 0.01, 9),
    ]  # fmt: skip
    assert {r.lr for r in asked} == {ROWS['sgd'].lr}


def test_the_memory_is_that_of_the_row_and_the_density_falls():
    run = Run('dgcsgd', 0.3, 0.01, 9, steps=20, workers=2, batch=8, seed=0)
    assert isinstance(composition(run, ROWS['dgcsgd']).memory, MomentumCorrection)
    assert isinstance(composition(run, ROWS['sgd']).memory, Residual)
    assert composition(run, ROWS['sgd']).schedule == DensitySchedule(0.01, warmup_steps=9)


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = optimizer_runs.TransformerLanguageModel(20, 16, 1, 2, 8)
    muon, adamw = muon_and_adamw(list(model.named_parameters()), 0.1)
    shapes = sorted(tuple(p.shape) for p in muon.param_groups[0]['params'])
    assert shapes == [(16, 16), (16, 64), (48, 16), (64, 16)]
    count = sum(len(group['params']) for each in (muon, adamw) for group in each.param_groups)
    assert count == len(list(model.parameters()))


def test_the_rate_rises_then_falls_to_a_tenth():
    rates = [rate_at(step, 100, 1.0) for step in range(101)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == sorted(rates[5:], reverse=True) and rates[100] == pytest.approx(0.1)


def test_the_targets_are_the_next_characters(words):
    text = Text(parse(words).text)
    inputs, targets = text.validated()
    assert inputs.shape == targets.shape == (optimizer_runs.VALIDATED, optimizer_runs.CONTEXT)
    assert inputs[:, 1:].equal(targets[:, :-1])


def test_a_measurement_goes_on_where_it_was_interrupted(words, monkeypatch, capsys, tmp_path):
    command = [*words, *SHORT, '--only', 'muon+adamw']
    assert main(command) == 0
    first = capsys.readouterr().out
    lines = (tmp_path / 'results').read_text().splitlines()
    assert [json.loads(each)['density'] for each in lines] == [1.0, 0.01, 0.01]
    dense, sparse, warm = (json.loads(each)['megabytes'] for each in lines)
    assert sparse < warm < dense
    (tmp_path / 'results').write_text('\n'.join([*lines[:2], lines[2][:20]]))
    trained = []

    def again(run, _):
        trained.append(run)
        return {key: json.loads(lines[2])[key] for key in ('loss', 'megabytes', 'seconds')}

    monkeypatch.setattr(optimizer_runs, 'train', again)
    assert main(command) == 0
    assert [run.warmup_steps for run in trained] == [1]
    assert capsys.readouterr().out == first
    assert main(command) == 0 and len(trained) == 1  # its line is no part of the cut one
    assert capsys.readouterr().out == first


def test_the_table_says_how_far_behind_each_seed_is():
    about = {'optimizer': 'sgd', 'megabytes': 2.0}
    losses = [(0, 1.0, 2.0), (1, 1.0, 3.0), (0, 0.01, 2.5), (1, 0.01, 3.1)]
    results = [
        {**about, 'seed': seed, 'density': density, 'warmup_steps': 0, 'loss': loss}
        for seed, density, loss in losses
    ]
    assert table(results).splitlines()[-1].split() == [
        'sgd', '0.01', '0', '2.800', '+0.300', '2.00', '(+0.100', 'to', '+0.500)',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ('more', 'message'),
    [
        (['--only', 'adamw,sdg'], "--only: there is no row 'sdg'"),
        (['--warmup-steps', 'a quarter'], "--warmup-steps: 'a quarter' is not a list of whole"),
        (['--warmup-steps', '10,-1'], "--warmup-steps: '10,-1' is not a list of whole"),
        (['--density', '1'], '--density must be above 0 and below 1, got 1.0'),
        (['--text', '/nowhere'], '--text: there is no file /nowhere'),
        (['--text', 'pyproject.toml'], '--text: pyproject.toml has less than 10000 bytes'),
        (['--results', '/nowhere/results'], '--results: there is no folder /nowhere'),
    ],
)
def test_bad_input_is_refused_in_one_line(words, more, message, capsys):
    with pytest.raises(SystemExit, match='2'):
        parse([*words, *more])
    errors = capsys.readouterr().err
    assert message in errors and errors.count('\n') == 1
