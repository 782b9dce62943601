"""What a run leaves to be read, as one rank writes it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from utils.log import RunLog, environment


def parts(rank: int = 0) -> SimpleNamespace:
    """Ten steps an epoch of 32 samples, over all workers."""
    return SimpleNamespace(
        engine=SimpleNamespace(rank=rank), samples_per_step=32, loaders={'train': range(10)}
    )


def epochs(folder) -> list[int]:
    lines = (folder / 'metrics.jsonl').read_text().splitlines()
    return [json.loads(line)['epoch'] for line in lines]


def write(folder, epochs: range, resumed_at: int | None = None) -> None:
    log = RunLog(folder, parts(), resumed_at)
    for epoch in epochs:
        log.epoch(epoch, {'loss/train': 1.5, 'acc/test_top1': 10.0 * epoch})
    log.close()


def test_a_line_an_epoch_with_the_samples_of_all_workers(tmp_path, capsys):
    write(tmp_path, range(2))
    lines = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
    assert lines == [
        {'epoch': 0, 'samples': 320, 'loss/train': 1.5, 'acc/test_top1': 0.0},
        {'epoch': 1, 'samples': 640, 'loss/train': 1.5, 'acc/test_top1': 10.0},
    ]
    assert capsys.readouterr().out.splitlines() == [
        'epoch 0: loss/train 1.5, acc/test_top1 0',
        'epoch 1: loss/train 1.5, acc/test_top1 10',
    ]


def test_other_ranks_leave_nothing(tmp_path, capsys):
    log = RunLog(tmp_path / 'run', parts(rank=1))
    log.step('loss/train', 1.0, 0)
    log.epoch(0, {'loss/train': 1.0})
    log.close()
    assert not (tmp_path / 'run').exists()
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize('resumed_at', [0, 1, 3])
def test_resuming_replaces_later_epochs_and_keeps_earlier_ones(tmp_path, resumed_at):
    write(tmp_path, range(3))
    write(tmp_path, range(resumed_at, 4), resumed_at)
    assert epochs(tmp_path) == [0, 1, 2, 3]


def test_a_line_cut_by_a_kill_does_not_stop_resuming(tmp_path):
    write(tmp_path, range(2))
    with (tmp_path / 'metrics.jsonl').open('a') as file:
        file.write('{"epoch": 2, "sam')
    write(tmp_path, range(2, 4), 2)
    assert epochs(tmp_path) == [0, 1, 2, 3]


def test_the_environment_names_each_host_once():
    lines = dict(line.split(': ', 1) for line in environment('torch', ['b', 'a', 'b']).splitlines())
    assert lines['hosts'] == 'a b'
    assert lines['workers'] == '3'
    assert lines['engine'] == 'torch'
    assert {'python', 'torch', 'horovod', 'platform', 'launcher', 'git commit'} <= set(lines)


def test_resuming_within_the_second_keeps_the_earlier_curves(tmp_path, monkeypatch):
    monkeypatch.setattr('time.time', lambda: 1_800_000_000.0)
    write(tmp_path, range(2))
    write(tmp_path, range(2, 4), resumed_at=2)
    assert len(list(tmp_path.glob('events.*'))) == 2
