"""Elastic workers that are killed: processes of train.py, and what the tool says of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tools.faults import elastic
from tools.faults.elastic import Job, Round, parse, quantile, run, summary
from tools.harness import pages

pytest.importorskip('torchft', reason='torchft is not installed (there is no wheel for all)')


def test_the_others_go_on_and_all_end_with_the_same_parameters(tmp_path, warm_python, monkeypatch):
    monkeypatch.setattr(elastic, 'AWAY', 1.0)
    monkeypatch.setattr(elastic, 'WRITTEN', 0.2)
    words = '--kills 1 --lighthouse 1 --mean 0.5 --workers 3 --epochs 3 --kinds dgc --seed 2'
    record = run('dgc', 1, parse(words.split()), tmp_path / 'job')
    assert record.wrong == []
    assert (record.kills, record.lighthouse_kills) == (1, 1)
    assert max(record.lost) <= 1
    assert record.seconds[0] > 0
    assert len(record.parameters) == 3
    assert len({*record.parameters}) == 1
    assert min(record.accuracy) > 50


def test_a_worker_that_was_killed_as_well_does_not_count_as_slow(tmp_path):
    """It writes into the file that its successor goes on with."""

    class Written(Job):
        def events(self, name):
            lost = {'w0': {'gradient': 1.0, 'residual': 8.0}}
            change = {'event': 'change', 'before': ['w0', 'w1', 'w2'], 'lost': lost}
            ends = 1.5 if name == 'w1' else 30.0
            between = [] if name == 'w1' else [{'event': 'start', 'time': 20.0}]
            return [{**change, 'time': 1.0}, *between, {'event': 'goes on', 'time': ends}]

    record = Round('dgc', 1, 1)
    elastic.measure(Written('dgc', tmp_path / 'job', 3, 1, 0), record, 0.0, 'w0', ['w1', 'w2'], [])
    assert (record.seconds, record.relative) == ([1.5], [8.0 / 3])


def test_the_table_compares_with_the_undisturbed_run():
    straight = Round('dgc', 0, 0, accuracy=[98.0], parameters=['a'])
    killed = Round(
        'dgc', 1, 1, kills=2, seconds=[1.0, 3.0], lost=[0, 1], accuracy=[96.5], parameters=['b']
    )
    row, wrong = summary([straight, killed])
    assert row == ['dgc', '2', '0', '1 (0.50)', '3.00, 3.00', '0.0', '', 'yes', '96.50 (98.00)']
    assert wrong == ['dgc: accuracy 96.50, undisturbed 98.00']
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0


def test_a_round_that_is_in_the_file_is_not_repeated(tmp_path, monkeypatch, capsys):
    made = []

    def fake(kind, number, arguments, folder):
        made.append((kind, number))
        return Round(kind, number, number, accuracy=[98.0], parameters=['a'])

    monkeypatch.setattr(elastic, 'run', fake)
    words = ['--rounds', '1', '--kinds', 'dgc', '--results', str(tmp_path / 'lines')]
    assert elastic.main(words) == elastic.main(words) == 0
    assert made == [('dgc', 0), ('dgc', 1)]
    assert capsys.readouterr().out.count('| dgc |') == 2
    assert elastic.main([*words, '--kills', '3']) == 0  # another experiment
    assert len(made) == 4


def test_the_table_of_the_docs_is_that_of_the_file(tmp_path, monkeypatch, capsys):
    page, words = tmp_path / 'page.md', ['--rounds', '2', '--results', str(tmp_path / 'lines')]
    begin, end = pages.marks('elastic')
    page.write_text(f'{begin}\n{end}\n')
    monkeypatch.setattr(elastic, 'PAGE', page)
    assert elastic.main([*words, '--write']) == 2  # there is nothing to write yet

    def fake(kind, number, arguments, folder):
        return Round(kind, number, number, kills=number, accuracy=[98.0], parameters=['a'])

    monkeypatch.setattr(elastic, 'run', fake)
    assert elastic.main([*words, '--kinds', 'dgc']) == 0
    monkeypatch.delattr(elastic, 'run')
    assert elastic.main([*words, '--write']) == 0  # of the kind that is there, and runs nothing
    text = page.read_text()
    assert text.startswith(f'{begin}\n| composition |')
    assert text.endswith(f'\n{end}\n')
    assert '| dgc | 3 |' in text
    assert '| dense |' not in text


def test_all_that_are_killed_go_on_from_their_last_checkpoint(tmp_path, warm_python):
    """The same command starts them again; one has lost its disk, and takes the others' state."""
    job = Job('dgc', tmp_path / 'job', 2, 3, 0, '--configs.checkpoint.every_steps=10')
    try:
        for name in ('lighthouse', *job.names):
            job.start(name)
        job.set_pace(0.02)
        runs = job.folder / 'runs'
        assert elastic.wait_until(lambda: all(has_saved(runs, name) for name in job.names), 60)
        for name in job.names:
            job.kill(name)
        folders = [next(runs.glob(f'*/{name}')) for name in job.names]
        shutil.rmtree(folders[1] / 'checkpoints')
        job.set_pace(0.0)
        before = [len(job.events(name)) for name in job.names]
        for name in job.names:
            job.start(name)
        assert elastic.wait_until(lambda: all(ended(job, name) for name in job.names), 60)
        record = Round('dgc', 1, 1)
        elastic.finish(job, record)
    finally:
        job.close()
    assert record.wrong == []
    assert len({*record.parameters}) == 1
    said = [(tmp_path / 'job' / f'{name}.txt').read_text() for name in job.names]
    assert re.search(r'continues from e0001\.s\d+ in .*/w0, with its own residual', said[0])
    assert 'w1 took the state of the others' in said[0]
    changes = [job.events(name)[n:] for name, n in zip(job.names, before, strict=True)]
    assert all(each[-1]['epochs'] == 3 for each in changes)
    assert changes[1][0]['event'] == 'start'
    for folder in folders:  # of each epoch one line, the resumed one's of what was left of it
        lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
        assert [line['epoch'] for line in lines] == [0, 1, 2]


def ended(job: Job, name: str) -> bool:
    return job.processes[name].poll() is not None


def has_saved(runs: Path, name: str) -> bool:
    """Whether a worker has a checkpoint within its second epoch."""
    return any(runs.glob(f'*/{name}/checkpoints/e0001.s*.pth'))
