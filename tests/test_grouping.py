"""Groups of tests: each in one of the processes of xdist, those that take longest first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('xdist')
HERE = Path(__file__).parent
WRITES = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture(autouse=True)
def _written(request):
    line = f'{os.environ["PYTEST_XDIST_WORKER"]} {request.node.name}\\n'
    with Path(__file__).with_name('log').open('a') as log:
        log.write(line)
    time.sleep(0.02)
"""
TESTS = """
import pytest

@pytest.mark.parametrize('number', range(6))
def test_NAME(number): ...

@pytest.mark.xdist_group('shared')
@pytest.mark.parametrize('number', range(3))
def test_shared_NAME(number): ...
"""


def test_a_group_runs_in_one_process_in_order_and_both_processes_are_used(tmp_path):
    (tmp_path / 'pytest.ini').write_text('[pytest]\n')
    (tmp_path / 'conftest.py').write_text(f'from grouping import *\n{WRITES}')
    for name in 'abc':
        (tmp_path / f'test_{name}.py').write_text(TESTS.replace('NAME', name))
    words = ['-p', 'no:cacheprovider', '-q', '-n', '2', '--dist', 'loadgroup']
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', *words, '--no-loadscope-reorder'],
        cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': str(HERE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in (tmp_path / 'log').read_text().splitlines()]
    assert len(lines) == 27
    groups = {name: [] for name in ('shared', 'test_a', 'test_b', 'test_c')}
    for worker, test in lines:
        groups['shared' if 'shared' in test else test.partition('[')[0]].append((worker, test))
    for name, members in groups.items():
        assert len({worker for worker, _ in members}) == 1, name
        assert [test for _, test in members] == sorted(test for _, test in members)
    assert len({worker for worker, _ in lines}) == 2
    assert 'shared' in lines[0][1] or 'shared' in lines[1][1]
