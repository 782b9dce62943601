"""What a run leaves to be read, as one rank writes it."""

from __future__ import annotations

import json
import os
import shlex
from types import SimpleNamespace

import pytest
from event_files import events

from utils.checkpoint import Checkpoints, Position
from utils.curves import Curves
from utils.files import WriteError, replacing
from utils.lines import untimed
from utils.log import Metrics, RunLog, environment
from utils.progress import bytes_row, closing_table, where_to_look


def parts(rank: int = 0) -> SimpleNamespace:
    """Ten steps an epoch of 32 samples, over all workers."""
    return SimpleNamespace(
        engine=SimpleNamespace(rank=rank), samples_per_step=32, loaders={'train': range(10)}
    )


def epochs(folder) -> list[int]:
    lines = (folder / 'metrics.jsonl').read_text().splitlines()
    return [json.loads(line)['epoch'] for line in lines]


def write(folder, epochs: range, resumed_at: int | None = None) -> None:
    log = RunLog(folder, parts(), None if resumed_at is None else Position(resumed_at))
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


def test_the_numbers_of_ranks_are_in_the_line_and_not_in_curves(tmp_path):
    log = RunLog(tmp_path, parts())
    log.epoch(0, {'acc/test_top1': 1.0}, {'bytes/sent': [1.0, 2.0]})
    log.close()
    (line,) = Metrics(tmp_path / 'metrics.jsonl').read()
    assert line['ranks'] == {'bytes/sent': [1.0, 2.0]}
    assert untimed({'a': 1, 'seconds/x': 2, 'ranks': {'seconds/x': [2], 'b': [3]}}) == {
        'a': 1, 'ranks': {'b': [3]},
    }  # fmt: skip


@pytest.mark.parametrize(('axis', 'points'), [('samples', {32, 320}), ('steps', {1, 10})])
def test_curves_are_against_samples_or_steps(tmp_path, axis, points):
    log = RunLog(tmp_path, parts(), axis=axis)
    log.point('loss/train', 1.0, log.place(0))
    log.epoch(0, {'acc/test_top1': 1.0})
    log.close()
    (file,) = tmp_path.glob('events.*')
    assert {e.step for e in events(file) if e.summary.value and e.step} == points


def test_other_ranks_leave_nothing(tmp_path, capsys):
    log = RunLog(tmp_path / 'run', parts(rank=1))
    log.point('loss/train', 1.0, log.place(0))
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


@pytest.mark.parametrize('cut', ['', '{"epoch": 1, "samp', '{"epoch": 1}'])
def test_a_line_that_could_not_be_written_whole_does_not_spoil_the_next(tmp_path, cut):
    """As on a full disk, where a server writes the line again when there is room."""
    metrics = Metrics(tmp_path / 'metrics.jsonl')
    metrics.append({'epoch': 0})
    with (tmp_path / 'metrics.jsonl').open('a') as file:
        file.write(cut)
    metrics.append({'epoch': 1, 'samples': 5})
    assert [line['epoch'] for line in metrics.read()] == [0, *[1] * cut.endswith('}'), 1]
    assert metrics.read()[-1] == {'epoch': 1, 'samples': 5}


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


# ---------------------------------------------------------------- damage

GARBAGE = ['', '{"epoch": 9, "sam', 'null', '[1]', '{}', '{"epoch": "0"}', '\\xff\\x00', '7']


@pytest.mark.parametrize('line', GARBAGE)
def test_a_damaged_line_of_metrics_is_skipped_with_a_warning(tmp_path, caplog, line):
    """docs/failures.md, row 24."""
    write(tmp_path, range(2))
    path = tmp_path / 'metrics.jsonl'
    first, second = path.read_text().splitlines()
    path.write_text(f'{first}\n{line}\n{second}\n')
    assert [numbers['epoch'] for numbers in Metrics(path).read()] == [0, 1]
    assert f'{path}: line 2 is damaged' in caplog.text
    write(tmp_path, range(2, 3), 2)
    assert epochs(tmp_path) == [0, 1, 2]


def test_the_commands_of_a_closing_table_can_be_pasted_into_a_shell(tmp_path):
    runs = tmp_path / "Ada's runs (old)"
    rows = where_to_look(runs / 'run')
    assert shlex.split(rows['report']) == ['python', '-m', 'tools.report', str(runs)]
    assert shlex.split(rows['curves'])[:3] == ['tensorboard', '--logdir', str(runs)]


def test_the_closing_table_names_the_report_and_the_best_model(tmp_path, capsys):
    checkpoints = Checkpoints(tmp_path / 'run/checkpoints')
    for epoch in range(2):
        checkpoints.save(Position(epoch + 1), {})
    checkpoints.finish(Position(2), best_epoch=0)
    numbers = {'epoch': 0, 'acc': 50.0, 'ratio': 0.1, 'bytes/sent': 10, 'bytes/dense': 275}
    numbers |= {f'seconds/{name}': 1 for name in ('train', 'compute', 'compress', 'communicate')}
    path = tmp_path / 'run/metrics.jsonl'
    path.write_text(json.dumps(numbers | {'seconds/wait': 1}) + '\n')
    configs = SimpleNamespace(train=SimpleNamespace(metric='acc', meters={}))
    closing_table(tmp_path / 'run', configs, SimpleNamespace(rank=0))
    said = capsys.readouterr().out
    assert '27.5× fewer bytes' in said
    assert f'python -m tools.report {tmp_path}' in said
    assert f'{tmp_path}/run/checkpoints/e0000.r0of1.pth' in said


def test_local_steps_without_an_outer_step_have_sent_nothing():
    assert bytes_row({'bytes/sent': 0, 'bytes/dense': 100}).startswith('none: there were fewer')


@pytest.mark.parametrize('metric', ['acc', None])
def test_the_closing_table_skips_lines_without_its_numbers(tmp_path, capsys, metric):
    """docs/failures.md, row 24: also those of a run with another metric."""
    write(tmp_path, range(1))
    path = tmp_path / 'metrics.jsonl'
    numbers = {'epoch': 1, 'acc': 50.0, 'ratio': 0.1, 'bytes/sent': 0, 'bytes/dense': 0}
    numbers |= {f'seconds/{name}': 1 for name in ('train', 'compute', 'compress', 'communicate')}
    path.write_text(path.read_text() + json.dumps(numbers | {'seconds/wait': 1}) + '\n\n')
    configs = SimpleNamespace(train=SimpleNamespace(metric=metric, meters={}))
    closing_table(tmp_path, configs, SimpleNamespace(rank=0))
    said = capsys.readouterr().out
    assert 'seconds, train        1.0' in said
    assert ('50.00 at the end, 50.00 best' in said) is (metric is not None)


@pytest.mark.parametrize('text', ['', '\n', 'one\n', '-1\n', '1 2\n'])
def test_a_best_epoch_that_cannot_be_read_is_skipped_with_a_warning(tmp_path, caplog, text):
    """docs/failures.md, row 24."""
    checkpoints = Checkpoints(tmp_path)
    for epoch in range(2):
        checkpoints.save(Position(epoch + 1), {})
    (tmp_path / 'best.txt').write_text(text)
    assert checkpoints.best() is None
    assert f'{tmp_path}/best.txt names no epoch' in caplog.text
    checkpoints.finish(Position(2))
    assert checkpoints.saved() == {(Position(1), 1), (Position(2), 1)}


@pytest.mark.parametrize('resumed_at', [0, 1])
def test_a_kill_while_metrics_are_cut_loses_none(tmp_path, monkeypatch, resumed_at):
    """docs/failures.md, row 24: the file is replaced, not rewritten."""
    write(tmp_path, range(2))
    monkeypatch.setattr(os, 'fsync', lambda number: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, range(0), resumed_at)
    assert epochs(tmp_path) == [0, 1]


# ---------------------------------------------------------------- a full disk


def full(*arguments, **settings):
    raise OSError(28, 'No space left on device')


def test_curves_on_a_full_disk_raise_at_once(tmp_path, monkeypatch):
    """docs/failures.md, row 13: tensorboardX's own thread would end, and add() would wait."""
    curves = Curves(tmp_path)
    monkeypatch.setattr(curves._writer._py_recordio_writer, '_writer', SimpleNamespace(write=full))
    for step in range(20):
        with pytest.raises(WriteError, match=rf'{tmp_path} cannot be written \(No space left'):
            curves.add('loss', 1.0, step)


def test_curves_hide_later_points_of_earlier_files(tmp_path):
    Curves(tmp_path, purge_step=7, suffix='.e0001').close()
    (file,) = tmp_path.iterdir()
    assert file.name.endswith('.e0001') and file.name.startswith('events.out.tfevents.')


def test_what_is_replaced_stays_whole_where_the_disk_is_full(tmp_path):
    """docs/failures.md, row 13."""
    path = tmp_path / 'file'
    path.write_text('old')
    for trouble in (OSError(28, 'No space left on device'), OSError(122, 'Disk quota exceeded')):
        with pytest.raises(WriteError, match=f'{path} cannot be written .{trouble.strerror}'):  # noqa: SIM117
            with replacing(path) as file:
                file.write(b'new')
                raise trouble
        assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [('file', 'old')]
