"""What `python -m bench.step --memory` counts."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from bench import memory, step

linux_only = pytest.mark.skipif(not memory.CLEAR.exists(), reason='reads /proc of Linux')


@linux_only
def test_a_peak_is_seen_after_it_is_released():
    before = memory.resident('VmRSS')
    memory.CLEAR.write_text(memory.RESET_PEAK)
    released = torch.ones(25_000_000)  # more than malloc takes from what was released before
    del released
    assert memory.resident('VmHWM') - before > 0.5 * 100_000_000  # others may be released meanwhile


@linux_only
def test_half_of_the_memory_is_half_of_the_bytes():
    found = {}
    for row in memory.ROWS:
        network = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 300))
        found[row] = memory.figures(network, row, workers=2)
    kept = {row: figures['kept'] for row, figures in found.items()}
    assert kept['compute alone'] == pytest.approx(4, abs=0.05)
    assert kept['dgc'] - kept['dgc, bfloat16'] == pytest.approx(4, abs=0.05)


@linux_only
def test_the_rows_are_measured_in_processes_and_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, 'ROWS', {'dgc': memory.ROWS['dgc']})
    file = tmp_path / 'memory.json'
    words = ['--memory', '--model', 'digits', '--rounds', '1', '--json', str(file)]
    assert step.main(words) == 0
    (row,) = json.loads(file.read_text())
    assert row['name'] == 'dgc'
    assert 'bytes per parameter' in capsys.readouterr().out


def test_other_systems_are_told(monkeypatch, capsys):
    monkeypatch.setattr(memory, 'CLEAR', Path('/nowhere/clear_refs'))
    assert step.main(['--memory', '--model', 'digits']) == 1
    assert 'which Linux alone has' in capsys.readouterr().err
