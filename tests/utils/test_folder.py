"""The folder of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from utils import folder as module
from utils.config import Config, ConfigError
from utils.folder import check_writable, claim, move_aside, prepare_folder


def test_move_aside_takes_the_first_free_name(tmp_path):
    folder = tmp_path / '[a+b].np2'
    for number in (1, 2, 3):
        folder.mkdir()
        (folder / 'made').write_text(str(number))
        moved = move_aside(folder)
        assert not folder.exists()
        assert moved == tmp_path / f'[a+b].np2~{number}'
        assert (moved / 'made').read_text() == str(number)


@pytest.mark.parametrize('moves_aside', [True, False])
def test_a_folder_that_another_run_writes_is_left_alone(tmp_path, moves_aside, capsys):
    held = prepare_folder(tmp_path / 'a', Config(), 'about', moves_aside)
    (tmp_path / 'a' / 'made').write_text('1')
    with pytest.raises(ConfigError, match=r'another run is writing .*/a: give this one a --suffix'):
        prepare_folder(tmp_path / 'a', Config(), 'about', moves_aside)
    assert (tmp_path / 'a' / 'made').read_text() == '1' and not (tmp_path / 'a~1').exists()
    held.close()
    prepare_folder(tmp_path / 'a', Config(), 'about', moves_aside).close()
    assert (tmp_path / 'a~1').exists() == moves_aside
    assert ('an earlier run of this name was renamed' in capsys.readouterr().out) == moves_aside


def test_one_that_can_be_written_is_there_and_empty(tmp_path):
    check_writable(tmp_path / 'runs' / 'a', rank=3)
    assert not list((tmp_path / 'runs' / 'a').iterdir())


@pytest.mark.parametrize(
    'write',
    [
        lambda folder: check_writable(folder, rank=0),
        lambda folder: prepare_folder(folder, Config(), 'about', moves_aside=True),
    ],
)
def test_one_that_cannot_be_written_is_named_with_the_reason(tmp_path, write):
    (tmp_path / 'file').write_text('in the way')
    folder = tmp_path / 'file' / 'a'
    with pytest.raises(ConfigError) as raised:
        write(folder)
    assert str(raised.value).startswith(f'{folder} cannot be written (Not a directory): ')
    assert (tmp_path / 'file').read_text() == 'in the way'


def test_a_process_that_outlives_its_run_does_not_keep_the_folder(tmp_path):
    """One that loads data, where its rank was killed."""
    held = claim(tmp_path / 'a')
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b'.')
        signal.pause()
    try:
        os.read(reader, 1)
        with pytest.raises(ConfigError, match='another run is writing'):
            claim(tmp_path / 'a')
        held.close()
        claim(tmp_path / 'a').close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


# ---------------------------------------------------------------- jobs that start together


def older_run(folder: Path) -> None:
    folder.mkdir()
    (folder / 'made').write_text('1')


@pytest.mark.parametrize('moment', ['before it is renamed', 'after it is renamed'])
def test_of_two_jobs_over_an_older_run_one_goes_on(tmp_path, monkeypatch, moment):
    """docs/failures.md, row 7: the second job starts while the first renames the folder."""
    folder, held = tmp_path / 'a', []
    older_run(folder)

    def second() -> None:
        monkeypatch.setattr(module, 'move_aside', move_aside)
        try:
            held.append(prepare_folder(folder, Config(), 'second', moves_aside=True))
        except ConfigError:
            held.append(None)

    def moved(path: Path) -> Path:
        if moment == 'before it is renamed':
            second()
        renamed = move_aside(path)
        if moment == 'after it is renamed':
            second()
        return renamed

    monkeypatch.setattr(module, 'move_aside', moved)
    try:
        held.append(prepare_folder(folder, Config(), 'first', moves_aside=True))
    except ConfigError:
        held.append(None)
    assert sum(lock is not None for lock in held) == 1
    winner = 'second' if held[0] else 'first'
    assert (folder / 'environment.txt').read_text() == winner
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a', 'a~1']
    assert (tmp_path / 'a~1' / 'made').read_text() == '1'


def test_of_jobs_that_start_together_one_goes_on(tmp_path):
    """docs/failures.md, row 7: threads with locks of their own, as processes have."""
    jobs = 3
    for attempt in range(40):
        folder = tmp_path / str(attempt)
        older_run(folder)
        start, held = threading.Barrier(jobs), []

        def job(number: int, folder=folder, start=start, held=held) -> None:
            start.wait()
            with contextlib.suppress(ConfigError):
                held.append((number, prepare_folder(folder, Config(), str(number), True)))

        threads = [threading.Thread(target=job, args=(number,)) for number in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ((winner, lock),) = held
        assert (folder / 'environment.txt').read_text() == str(winner)
        assert (tmp_path / f'{attempt}~1' / 'made').is_file()
        assert not (tmp_path / f'{attempt}~2').exists()
        lock.close()


def test_a_lock_of_a_folder_that_was_renamed_is_not_taken(tmp_path, monkeypatch):
    """docs/failures.md, row 7."""
    folder = tmp_path / 'a'
    older_run(folder)
    flock, renamed = module.fcntl.flock, []

    def late(lock, how) -> None:
        if not renamed:  # between opening the lock and locking it
            renamed.append(folder.rename(tmp_path / 'a~1'))
        flock(lock, how)

    monkeypatch.setattr(module.fcntl, 'flock', late)
    with claim(folder):
        assert renamed and (folder / '.lock').exists() and not (folder / 'made').exists()
        with pytest.raises(ConfigError, match='another run is writing'):
            claim(folder)
