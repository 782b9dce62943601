"""tools.faults: a short form of its damage, and that it would see what goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tools.faults import damage
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
