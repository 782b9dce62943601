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


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'xdist', *words],
        cwd=folder,
        env=os.environ | {'PYTHONPATH': str(HERE), 'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'},
        capture_output=True,
        text=True,
    )


def test_groups_stay_together_and_the_third_process_begins_with_those_that_do_not_wait(tmp_path):
    """Each process takes groups of the other kind once there are none of its own."""
    (tmp_path / 'pytest.ini').write_text('[pytest]\n')
    (tmp_path / 'conftest.py').write_text(f'from grouping import *\n{WRITES}')
    (tmp_path / 'bench').mkdir()  # where tests start processes
    for name in 'abcdef':
        folder = tmp_path / 'bench' if name in 'abc' else tmp_path
        (folder / f'test_{name}.py').write_text(TESTS.replace('NAME', name))
    words = ['-p', 'no:cacheprovider', '-q', '-n', '3', '--dist', 'loadgroup']
    done = run(tmp_path, *words, '--no-loadscope-reorder')
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in (tmp_path / 'log').read_text().splitlines()]
    assert len(lines) == 54
    groups = {name: [] for name in ('shared', *(f'test_{name}' for name in 'abcdef'))}
    for worker, test in lines:
        groups['shared' if 'shared' in test else test.partition('[')[0]].append((worker, test))
    for name, members in groups.items():
        assert len({worker for worker, _ in members}) == 1, name
        assert [test for _, test in members] == sorted(test for _, test in members)
    first = {worker: test.partition('[')[0] for worker, test in reversed(lines)}
    assert len(first) == 3
    assert {first['gw0'], first['gw1']} < {'test_shared_a', 'test_a', 'test_b', 'test_c'}
    assert first['gw2'] == 'test_f'


def test_the_address_of_an_object_in_a_name_is_refused(tmp_path):
    (tmp_path / 'pytest.ini').write_text('[pytest]\n')
    (tmp_path / 'conftest.py').write_text('from grouping import *')
    parameters = "@pytest.mark.parametrize('one', [object()], ids=str)"
    (tmp_path / 'test_a.py').write_text(f'import pytest\n\n{parameters}\ndef test_a(one): ...\n')
    done = run(tmp_path, '-p', 'no:cacheprovider', '-q')
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert 'give it ids: test_a.py::test_a[<object object at 0x' in done.stdout + done.stderr
