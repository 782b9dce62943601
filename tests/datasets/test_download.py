"""One download, whatever number of processes ask."""

import multiprocessing
import time

import pytest

from datasets import SynthesisedWords
from datasets.download import fetch_once

WORKERS = 6


def ask(folder, log, started):
    """What each process of a job does at start."""

    def fetch(parent):
        with open(log, 'a') as file:
            file.write('fetched\n')
        (parent / folder.name).mkdir()
        time.sleep(0.3)  # long enough for all the others to come
        (parent / folder.name / 'data').write_text('whole')

    started.wait()
    fetch_once(folder, fetch)
    with open(log, 'a') as file:
        file.write((folder / 'data').read_text() + '\n')


def test_processes_racing_on_an_empty_folder_fetch_once_and_all_see_it_whole(tmp_path):
    context = multiprocessing.get_context('fork')
    log, started = tmp_path / 'log', context.Barrier(WORKERS)
    processes = [
        context.Process(target=ask, args=(tmp_path / 'root' / 'data', log, started))
        for _ in range(WORKERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * WORKERS
    assert log.read_text().split() == ['fetched', *['whole'] * WORKERS]


def test_a_failed_fetch_leaves_nothing_that_looks_complete_and_the_next_begins_anew(tmp_path):
    folder = tmp_path / 'data'

    def cut(parent):
        (parent / 'data').mkdir()
        (parent / 'data' / 'half').touch()
        raise RuntimeError('cut')

    def whole(parent):
        assert not list(parent.iterdir())
        (parent / 'data').mkdir()

    with pytest.raises(RuntimeError, match='cut'):
        fetch_once(folder, cut)
    assert not folder.exists()
    fetch_once(folder, whole)
    assert not list(folder.iterdir())


def test_what_a_killed_process_left_is_thrown_away(tmp_path):
    left = tmp_path / '.data.partial' / 'data'
    left.mkdir(parents=True)
    (left / 'half').touch()
    fetch_once(tmp_path / 'data', lambda parent: (parent / 'data').mkdir())
    assert not list((tmp_path / 'data').iterdir())
    assert not left.exists()


def read_only(folder):
    """What is beside a complete folder, which no one can write to; root can."""
    (folder / '.data.lock').unlink(missing_ok=True)
    folder.chmod(0o500)
    return sorted(folder.iterdir())


def test_a_folder_that_is_there_is_left_alone_and_nothing_is_written_beside_it(tmp_path):
    (tmp_path / 'data').mkdir()
    before = read_only(tmp_path)
    fetched = []
    fetch_once(tmp_path / 'data', fetched.append)
    assert not fetched and sorted(tmp_path.iterdir()) == before


def test_a_data_set_that_is_complete_is_read_where_nothing_can_be_written(tmp_path):
    """Root, whom no mode keeps out, would leave a lock."""

    def made():
        return SynthesisedWords(str(tmp_path), num_train=1, num_test=1)

    words = [len(made()[split]) for split in ('train', 'test')]
    for lock in tmp_path.glob('.*.lock'):
        lock.unlink()
    before = read_only(tmp_path)
    assert [len(made()[split]) for split in ('train', 'test')] == words == [1, 1]
    assert sorted(tmp_path.iterdir()) == before


def test_a_fetch_that_leaves_no_folder_is_an_error(tmp_path):
    with pytest.raises(OSError, match='data'):
        fetch_once(tmp_path / 'data', lambda parent: None)
