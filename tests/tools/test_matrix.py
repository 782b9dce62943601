"""Which versions the matrix tries, and what its rows say; without installing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.matrix import __main__ as matrix
from tools.matrix import pythons, trial
from tools.matrix.trial import Outcome


def test_the_oldest_and_the_newest_torch_are_those_of_the_project():
    oldest, newest = matrix.supported()
    assert oldest.count('.') == newest.count('.') == 2
    assert tuple(map(int, oldest.split('.'))) < tuple(map(int, newest.split('.')))


def test_every_file_of_tests_is_there():
    assert [file for file in trial.TESTS if not (trial.ROOT / file).is_file()] == []


def test_a_python_that_is_not_here_is_reported_with_each_installer_s_answer(monkeypatch):
    monkeypatch.setattr(pythons, 'find', lambda version: None)
    commands = [('apt', ['false']), ('uv', ['sh', '-c', 'echo no such version >&2; exit 1'])]
    monkeypatch.setattr(pythons, 'installers', lambda version: commands)
    missing = pythons.obtain('3.99')
    assert missing.path is None
    assert missing.missing == 'apt: no message; uv: no such version'


def test_a_stand_in_that_does_not_start_is_passed_over(tmp_path, monkeypatch):
    real = tmp_path / 'versions/3.99.1/bin/python3.99'
    for path, text in ((tmp_path / 'python3.99', 'exit 127'), (real, 'exit 0')):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n{text}\n')
        path.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:/usr/bin:/bin')
    monkeypatch.setenv('PYENV_ROOT', str(tmp_path))
    assert pythons.find('3.99') == str(real)


@pytest.mark.parametrize(
    ('answers', 'ok', 'result'),
    [
        ([(1, 'text\nERROR: no wheel for it\n')], False, 'not installed: no wheel for it'),
        ([(0, ''), (1, 'Trace\nImportError: gone')], False, 'import failed: ImportError: gone'),
        ([(0, ''), (0, '2.8.0 2.1 plain'), (0, '7 passed, 1 skipped in 3.21s')], True,
         '7 passed, 1 skipped'),
        ([(0, ''), (0, '2.8.0 2.1 plain'), (1, '1 failed, 6 passed in 3.21s')], False,
         '1 failed, 6 passed'),
    ],
)  # fmt: skip
def test_a_row_says_how_far_a_pair_came(tmp_path, monkeypatch, answers, ok, result):
    remaining = iter([(0, ''), *answers])  # venv first
    monkeypatch.setattr(trial, 'logged', lambda command, log: next(remaining))
    row = trial.trial('python3', '3.10', '2.8.0', Path('x.whl'), tmp_path / 'pair')
    assert (row.ok, row.result) == (ok, result)
    assert next(remaining, None) is None


def test_the_table_has_a_line_for_each_pair():
    row = Outcome('3.10', '2.8.0', '2.2.6', 'compiled', '7 passed', 61.4, True)
    header, line = matrix.table([row]).splitlines()
    assert header.split() == ['python', 'torch', 'numpy', 'kernels', 'tests', 'seconds']
    assert line.split() == ['3.10', '2.8.0', '2.2.6', 'compiled', '7', 'passed', '61']
