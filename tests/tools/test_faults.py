"""tools.faults: a short form of its damage, and that it would see what goes wrong.

The attacks on a server are in tests/dgc/test_parameter_server_gate.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tools.faults import damage
from tools.faults.server import attacked
from tools.faults.server import kills as server_kills
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
    assert {kind for kind, _ in found} == set(damage.KINDS)
    assert [wrong for _, wrong in found if wrong] == []


@pytest.mark.parametrize(
    ('module', 'name', 'kind'),
    [(sealed, 'is_intact', 'a bit flipped'), (checkpoint, 'foreign', 'swapped between ranks')],
)
def test_it_sees_a_check_that_is_gone(originals, monkeypatch, module, name, kind):
    result = True if name == 'is_intact' else ''
    monkeypatch.setattr(module, name, lambda *_: result)
    found = damage.trials(originals, nn.Linear(4, 4, bias=False), 8 * len(damage.KINDS), seed=3)
    assert [wrong for each, wrong in found if each == kind and wrong]


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
def test_a_killed_server_loses_no_acknowledged_update(tmp_path):
    """A short form of `python -m tools.faults.server --kills 20`."""
    *kills, last = server_kills.kill(tmp_path, 1, seed=1)
    assert len(kills) == 1 and kills[0]['update'] > 0
    assert last['wrong'] == '' and last['code'] == 0
    assert (
        last['updates acknowledged'] == last['applied'] == last['in the model'] > kills[0]['update']
    )
