"""What `python -m bench.input` prints and writes."""

from __future__ import annotations

import json

import pytest
import torch

from bench import input as bench_input

pytest.importorskip('torchvision')

SMALL = ['--threads', '1', '--rounds', '1', '--steps', '1', '--batch', '2', '--images', '8']


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_row_is_measured_and_compared_with_its_own_compute(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_input, 'JPEGS', 4)
    monkeypatch.setattr(bench_input, 'BATCH_OF_FILES', 2)
    file = tmp_path / 'input.json'
    assert bench_input.main([*SMALL, '--workers', '0', '1', '--json', str(file)]) == 0
    rows = {row['name']: row for row in json.loads(file.read_text())}
    assert [*rows] == [*bench_input.ROWS, 'files, 0 processes', 'files, 1 processes']
    assert all(row['images_per_second'] > 0 and row['threads'] == 1 for row in rows.values())
    for name in bench_input.ROWS:
        base = rows[bench_input.base_of(name)]['samples'][0]
        assert rows[name]['of_compute'] == pytest.approx(rows[name]['samples'][0] / base)
    assert rows['compute']['of_compute'] == 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in rows)


def test_a_turn_is_as_many_steps_of_the_loop_of_train(monkeypatch):
    """The same model, optimizer and number of steps, whether the batch is fixed or loaded."""
    arguments = bench_input.parse([*SMALL, '--images', '20', '--steps', '3'])
    data = bench_input.images(arguments)
    assert len(data['train']) == 20
    loaded = []
    original = type(data['train'].dataset).__getitems__
    monkeypatch.setattr(
        type(data['train'].dataset),
        '__getitems__',
        lambda self, indices: loaded.append(len(indices)) or original(self, indices),
    )
    for fixed, expected in ((False, [2, 2, 2]), (True, [])):
        turn = bench_input.of_train(arguments, data, fixed=fixed, last=False)
        loaded.clear()
        turn()
        assert loaded == expected
