"""The files of a server, also after it was killed."""

from __future__ import annotations

import json
import os
from fractions import Fraction

import pytest
from event_files import events

from dgc.parameter_server import Update
from utils.meters import QUALITY, Ranking
from utils.training.server_log import HEADER, ServerLog, closing_table

EPOCH = 4  # updates


@pytest.fixture
def ended() -> list[tuple[int, dict[str, float]]]:
    return []


def log_of(tmp_path, ended, version=None, seconds=0.0) -> ServerLog:
    log = ServerLog(EPOCH, lambda epoch, numbers: ended.append((epoch, numbers)))
    log.open(tmp_path, numel=100, version=version, seconds=seconds)
    return log


def update(version: int) -> Update:
    """An update of slot 1."""
    return Update(version, 1, staleness=version, received=10, sent=20, elements=8)


def versions(tmp_path) -> list[int]:
    head, *rows = (tmp_path / 'updates.csv').read_text().splitlines(keepends=True)
    assert head == HEADER
    return [int(row.partition(',')[0]) for row in rows]


def test_an_epoch_of_a_fraction_ends_with_the_first_update_behind_it(tmp_path, ended):
    """Of 8/3 updates: after 3, 6, 8 of them; also where the run is resumed in between."""
    log = ServerLog(Fraction(8, 3), lambda epoch, numbers: ended.append((epoch, numbers)))
    log.open(tmp_path, numel=100, version=None, seconds=0.0)
    for version in range(1, 5):
        log.updated(update(version))
    log.close()
    log = ServerLog(Fraction(8, 3), lambda epoch, numbers: ended.append((epoch, numbers)))
    log.open(tmp_path, numel=100, version=4, seconds=0.0)
    for version in range(5, 10):
        log.updated(update(version))
    log.close()
    assert [(epoch, numbers['updates']) for epoch, numbers in ended] == [(0, 3), (1, 6), (2, 8)]
    assert [numbers['bytes/received'] for _, numbers in ended] == [30, 30, 20]


def test_an_epochs_numbers(tmp_path, ended):
    log = log_of(tmp_path, ended)
    log.losses(0, [1.0, 2.0])
    for version in range(1, 6):
        log.updated(update(version))
    log.close()
    ((epoch, numbers),) = ended
    assert epoch == 0
    assert numbers.pop('seconds') >= 0
    assert numbers == {
        'updates': 4,
        'loss/train': 1.5,
        'staleness/mean': 2.5,
        'staleness/max': 4,
        'bytes/received': 40,
        'bytes/sent': 80,
        'bytes/dense': 4 * 2 * 400,
        'ratio': 32 / 800,
    }
    assert versions(tmp_path) == [1, 2, 3, 4, 5]


def test_every_number_of_an_epoch_has_a_curve_and_one_of_updates_no_second_one(tmp_path, ended):
    """Whatever meters the configuration has: also those of a name of one's own."""
    measured = {f'{name}test': 2.0 for name in (*QUALITY, 'f1/')}
    log = log_of(tmp_path, ended)
    for version in range(1, 21):
        log.losses(0, [1.0])
        log.updated(update(version))
        if version % EPOCH == 0:
            log.write(ended[-1][0], {**ended[-1][1], **measured, 'workers': 1})
    log.close()
    (file,) = tmp_path.glob('events.*')
    points = [(value.tag, event.step) for event in events(file) for value in event.summary.value]
    for name in (*measured, 'workers'):
        assert [step for tag, step in points if tag == name] == [4, 8, 12, 16, 20]
        assert [step for tag, step in points if tag == f'by_milliepoch/{name}'][:2] == [1000, 2000]
    for name in ('loss/train', 'bytes/sent', 'ratio'):
        assert [step for tag, step in points if tag == name] == [20]


def test_a_resumed_run_drops_lines_after_its_checkpoint_and_keeps_those_before(tmp_path, ended):
    log = log_of(tmp_path, ended)
    for version in range(1, 8):
        log.updated(update(version))
    log.write(0, {**ended[0][1], 'acc/test_top1': 50.0})
    log.close()
    with (tmp_path / 'updates.csv').open('a') as file:
        file.write('8,1.')  # cut by a kill
    again = log_of(tmp_path, ended, version=6, seconds=100.0)
    for version in (7, 8):
        again.updated(update(version))
    again.close()
    epoch, numbers = ended[-1]
    assert epoch == 1 and numbers['seconds'] >= 100
    assert numbers['bytes/received'] == 40  # those of updates 5 and 6 among them
    assert numbers['staleness/max'] == 8
    assert versions(tmp_path) == list(range(1, 9))
    assert [json.loads(line)['epoch'] for line in (tmp_path / 'metrics.jsonl').open()] == [0]


def test_the_closing_table_works_without_losses(tmp_path, ended):
    log = log_of(tmp_path, ended)
    for version in range(1, 9):
        if version > 4:
            log.losses(0, [1.0])
        log.updated(update(version))
    log.close()
    epochs = [{**numbers, 'acc/test_top1': 10.0 * epoch} for epoch, numbers in ended]
    assert 'loss/train' not in epochs[0] and 'loss/train' in epochs[1]
    text = closing_table(epochs, tmp_path, 'acc/test_top1', Ranking())
    assert '10.00 at the end, 10.00 best' in text
    assert 'bytes up       0.00 MB; dense would be 0.00 MB: 40.0× fewer bytes' in text
    assert closing_table([], tmp_path, 'acc/test_top1', Ranking()) == ''
    assert 'best' not in closing_table(epochs, tmp_path, None, Ranking())


@pytest.mark.parametrize('line', ['', 'x,1.0,1,1,10,20,8', '3,1.0,1', '3,y,1,1,10,20,8', 'null'])
def test_a_damaged_line_of_updates_is_skipped_with_a_warning(tmp_path, ended, caplog, line):
    """docs/failures.md, row 24."""
    log = log_of(tmp_path, ended)
    for version in (1, 2):
        log.updated(update(version))
    log.close()
    path = tmp_path / 'updates.csv'
    head, first, second = path.read_text().splitlines()
    path.write_text(f'{head}\n{first}\n{line}\n{second}\n3,1.0,1,1,10,20,')
    again = log_of(tmp_path, ended, version=2)
    again.close()
    assert versions(tmp_path) == [1, 2]
    assert f'{path}: line 3 is damaged' in caplog.text and 'the last line is cut' in caplog.text


def test_a_kill_while_updates_are_cut_loses_none(tmp_path, ended, monkeypatch):
    """docs/failures.md, row 24: the file is replaced, not rewritten."""
    log = log_of(tmp_path, ended)
    log.updated(update(1))
    log.close()
    monkeypatch.setattr(os, 'fsync', lambda number: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ServerLog._open_updates(log, 1)
    assert versions(tmp_path) == [1]
