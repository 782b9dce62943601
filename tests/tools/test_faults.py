"""tools.faults: a short form of its faults, and that it would see what goes wrong.

The attacks on a server are in tests/dgc/test_parameter_server_gate.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import warm
from torch import nn

from tools.faults import damage, plans, report, runs
from tools.faults.__main__ import main
from tools.faults.plans import Campaign
from tools.faults.runs import Plan
from tools.faults.server import attacked
from tools.faults.server import kills as server_kills
from tools.faults.trace import Step, steps_again
from tools.harness import pages
from utils import checkpoint, sealed
from utils.checkpoint import Checkpoints, Position

POSITIONS = [Position(1), Position(1, 2), Position(2)]


@pytest.fixture
def originals(tmp_path) -> Path:
    """Checkpoints of two ranks with a small model."""
    for rank in range(damage.RANKS):
        mine = Checkpoints(tmp_path / 'run' / 'checkpoints', rank, damage.RANKS, 'start')
        for position in POSITIONS:
            weight = torch.full((4, 4), float(position.epochs + rank))
            mine.save(position, {'model': {'weight': weight}, 'best': None})
    return tmp_path / 'run' / 'checkpoints'


def test_no_damage_is_silent_and_the_last_good_checkpoint_is_used(originals):
    model = nn.Linear(4, 4, bias=False)
    found = list(damage.trials(originals, model, 5 * len(damage.KINDS), seed=3))
    assert {kind for _, kind, _ in found} == set(damage.KINDS)
    assert [wrong for *_, wrong in found if wrong] == []


@pytest.mark.parametrize(
    ('module', 'name', 'kind'),
    [(sealed, 'is_intact', 'a bit flipped'), (checkpoint, 'foreign', 'swapped between ranks')],
)
def test_it_sees_a_check_that_is_gone(originals, monkeypatch, module, name, kind):
    result = True if name == 'is_intact' else ''
    monkeypatch.setattr(module, name, lambda *_: result)
    found = damage.trials(originals, nn.Linear(4, 4, bias=False), 8 * len(damage.KINDS), seed=3)
    assert [wrong for _, each, wrong in found if each == kind and wrong]


@pytest.fixture
def campaign(tmp_path, monkeypatch) -> Campaign:
    """Runs of two epochs of 45 steps, which faults meet soon after their first step."""
    monkeypatch.setattr(runs, 'PAUSE', 0.1)
    monkeypatch.setattr(runs, 'EARLY', 0.0)
    monkeypatch.setattr(plans, 'FAULTS', 1)
    for name, value in warm.environment().items():
        monkeypatch.setenv(name, value)
    return Campaign(tmp_path, epochs=2, steps=10, seed=1, python=str(warm.STUB))


def test_a_run_that_is_killed_is_compared_with_one_that_is_not(campaign):
    campaign.times('alone', kills=1, signals=0)
    before = campaign.lines()
    line = before[-1]  # earlier runs may have ended before their fault
    (fault,) = line['faults']
    assert (line['wrong'], line['starts'], fault['what']) == ([], 2, 'kill -9')
    assert 0 < fault['again'] <= 20 and fault['seconds'] > 0
    campaign.times('alone', kills=1, signals=0)  # which goes on behind its last line
    assert campaign.lines() == before
    (digest,) = campaign.folder.glob('reference/*.digest')
    digest.write_text('another')
    campaign.run(Plan('times', 'alone', 9, 2, 10, faults=0))
    assert campaign.lines()[-1]['wrong'] == [
        'it leaves other tensors or metrics than the undisturbed run'
    ]


def steps(pid: int, first: int, last: int, start: float) -> list[Step]:
    return [Step(start + n, 0, pid, f'loss {n}') for n in range(first, last)]


@pytest.mark.parametrize(
    ('code', 'epochs', 'expected'),
    [(143, 0, True), (-15, 0, False), (-15, 1, False), (-15, 2, True), (1, 2, False)],
)
def test_only_a_complete_run_may_end_by_the_signal_itself(tmp_path, code, epochs, expected):
    run = runs.Run(tmp_path, Plan('times', 'alone', 0, 2, 10, faults=1), 0)
    if epochs:
        (tmp_path / 'runs' / 'run').mkdir(parents=True)
        (tmp_path / 'runs' / 'run' / 'metrics.jsonl').write_text('{}\n' * epochs)
    assert run.may_end(code) is expected


def test_a_program_that_cannot_train_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(['--python', 'nowhere'])
    assert ended.value.code == 2 and "'nowhere' is no program" in capsys.readouterr().err
    counts = [f'--{name}=0' for name in ('damage', 'kills', 'signals', 'writes')]
    given = ['--folder', str(tmp_path), '--restarts', '1', '--python', 'false']
    assert main([*given, *counts]) == 1
    assert 'the undisturbed run failed' in capsys.readouterr().err


def test_steps_that_are_made_again_are_counted():
    reference = steps(1, 0, 30, 0.0)
    killed = [*steps(7, 0, 25, 100.0), *steps(8, 20, 30, 200.0)]
    assert steps_again(killed, reference, fault=130.0) == 5
    asked = [*steps(7, 0, 25, 100.0), *steps(8, 25, 30, 200.0)]  # finishes its step, and saves
    assert steps_again(asked, reference, fault=123.5) == 0
    assert steps_again(killed, reference, fault=99.0) is None  # before the first step
    assert steps_again(killed, reference, fault=300.0) is None  # behind the last one
    with pytest.raises(KeyError):
        steps_again([*killed, *steps(9, 31, 32, 300.0)], reference, fault=240.0)


def test_the_tables_have_what_was_counted(tmp_path):
    kill = {'what': 'kill -9', 'partial': 9, 'again': 4, 'seconds': 2.0}
    run = {'kind': 'writes', 'launcher': 'alone', 'faults': [kill, kill | {'again': 9}]}
    missed = {'faults': [kill | {'partial': None}], 'wrong': ['it leaves other tensors']}
    lines = [
        run | {'wrong': []},
        run | missed,
        {'kind': 'damage', 'what': 'removed', 'wrong': []},
        {'kind': 'damage', 'what': 'removed', 'wrong': ['nothing was said']},
    ]
    text = report.tables(lines)
    assert '| alone | 2 × kill -9 while a file is written | 2 | 1 of 2 | 6.5, 9 | 2, 2 |' in text
    assert '| removed | 2 | 1 |' in text
    page = tmp_path / 'page.md'
    begin, end = pages.marks('faults')
    page.write_text(f'before\n{begin}\nold\n{end}\nafter\n')
    pages.write(page, text, 'faults')
    assert page.read_text() == f'before\n{begin}\n{text}\n{end}\nafter\n'


@pytest.mark.parametrize(
    ('applied', 'version', 'difference', 'wrong'),
    [
        ({1: 5, 2: 7}, 12, 1e-4, ''),
        ({1: 5, 2: 6}, 11, 1e-4, 'acknowledged'),  # one is lost
        ({1: 5}, 5, 1e-4, 'acknowledged'),
        ({1: 5, 2: 7}, 13, 1e-4, '13 updates in the model, 12 acknowledged'),
        ({1: 5, 2: 7}, 12, 1.0, 'differs by 1.0e'),
    ],
)
def test_a_lost_or_repeated_update_is_seen(applied, version, difference, wrong):
    state = {'applied': applied, 'version': version}
    found = server_kills.faults_of({1: 5, 2: 7}, state, difference)
    assert wrong in found if wrong else found == ''


@pytest.mark.parametrize(
    ('alive', 'memory', 'files', 'rate', 'wrong'),
    [
        ([True, True], 10, 10, 3.0, ''),
        ([False, True], 10, 10, 3.0, 'the server has ended'),
        ([True, False], 10, 10, 3.0, 'a worker has ended'),
        ([True, True], 3_000_000_000, 10, 3.0, 'exceeded'),
        ([True, True], 10, 1025, 3.0, 'exceeded'),
        ([True, True], 10, 10, 0.0, 'did not train on'),
    ],
)
def test_a_server_that_does_not_hold_is_seen(alive, memory, files, rate, wrong):
    watch = attacked.Watch(0, memory, files)
    found = attacked.faults_of(alive, watch, attacked.Rate(None, rate))
    assert wrong in found if wrong else found == ''


@pytest.mark.slow
def test_a_killed_server_loses_no_acknowledged_update(tmp_path, warm_python):
    """A short form of `python -m tools.faults.server --kills 20`."""
    *kills, last = server_kills.kill(tmp_path, 1, seed=1)
    assert len(kills) == 1 and kills[0]['update'] > 0
    assert last['wrong'] == '' and last['code'] == 0
    assert (
        last['updates acknowledged'] == last['applied'] == last['in the model'] > kills[0]['update']
    )
