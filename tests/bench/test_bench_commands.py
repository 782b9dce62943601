"""The commands: invalid input, and short measurements with real workers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

from tools.harness.algorithms import compositions

ROOT = Path(__file__).parents[2]
SHORT = ('--model', 'digits', '--batch', '2', '--rounds', '2', '--steps', '1')


def run(
    module: str, *arguments: str, cold: bool = False, **more: str
) -> subprocess.CompletedProcess:
    """A command of bench/. Cold: it does not start from a Python that has imported torch."""
    words = [sys.executable, '-m', module, *arguments]
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'} | more
    return subprocess.run(
        words if cold else warm.warmed(words),
        cwd=ROOT,
        env=environment if cold else environment | warm.environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    ('module', 'arguments', 'message'),
    [
        ('bench.cluster', ('--only', 'dcg'), "--only: there is no row 'dcg' under torch or"),
        ('bench.cluster', ('--rates', '10mbits'), "'10mbits' is not a rate"),
        ('bench.cluster', ('--nodes', '1'), 'a single node exchanges no gradients'),
        ('bench.cluster', ('--nodes', '251'), 'a cluster has 1 to 250 nodes'),
        ('bench.cluster', ('--json', 'nowhere/x.json'), '--json: there is no folder'),
        ('bench.step', ('--only', 'horovod'), "there is no row 'horovod' under torch"),
        ('bench.step', ('--rounds', '0'), '0 is less than 1'),
        ('bench.step', ('--model', 'vgg'), 'invalid choice'),
        ('bench.parameter_server', ('--slow', '10mbits'), "'10mbits' is not a rate"),
        ('bench.parameter_server', ('--only', 'sgd'), 'invalid choice'),
        ('bench.parameter_server', ('--json', 'nowhere/x.json'), '--json: there is no folder'),
        ('bench.chaos', ('--workers', '0'), '0 is less than 1'),
        ('bench.chaos', ('--kill-workers', '-1'), '-1 is less than 0'),
    ],
)
def test_bad_input_is_refused_in_one_line(module, arguments, message, capsys):
    """In this process: a process of its own would spend seconds on importing torch."""
    with pytest.raises(SystemExit, match='2'):
        importlib.import_module(module).main(list(arguments))
    output, errors = capsys.readouterr()
    assert output == ''
    assert errors.count('\n') == 1 and message in errors
    assert errors.startswith(f'{module}: ')


def test_a_refused_command_ends_with_code_2():
    done = run('bench.cluster', '--nodes', '1')
    assert done.returncode == 2 and done.stdout == ''
    assert done.stderr.count('\n') == 1


@pytest.mark.parametrize(
    'module', ['bench.cluster', 'bench.step', 'bench.parameter_server', 'bench.chaos']
)
def test_help_shows_an_example(module):
    done = run(module, '--help', cold=True)  # which does not import torch
    assert done.returncode == 0
    assert f'python -m {module} --' in done.stdout


@pytest.mark.slow
@pytest.mark.namespaces
def test_throughput_with_a_slow_worker(tmp_path):
    words = (
        '--model',
        'digits',
        '--only',
        'dgs',
        'dgc',
        '--workers',
        '2',
        '--seconds',
        '3',
        '--json',
        f'{tmp_path}/t.json',
    )
    done = run('bench.parameter_server', *words)
    assert done.returncode == 0, done.stderr
    rows = {row['mode']: row for row in json.loads((tmp_path / 't.json').read_text())}
    assert set(rows) == {'dgs', 'dgc'}
    assert all(len(row['updates']) == 2 and min(row['updates']) > 0 for row in rows.values())
    a_step = {mode: row['sent'] / sum(row['updates']) for mode, row in rows.items()}
    assert 10 * a_step['dgs'] < 4 * 36_010  # the float32 gradient
    assert all(name in done.stdout for name in ('DGS, both ways', 'DGC, synchronous'))


@pytest.mark.slow
def test_step_measures_every_row_that_torchrun_can_start(tmp_path):
    file = tmp_path / 'rows.json'
    names = ['compute', 'ddp', 'ddp fp16', *compositions()]
    words = ('--only', ','.join(names), '--json', str(file))
    done = run('bench.step', *SHORT, *words)
    assert done.returncode == 0, done.stderr
    rows = {row['row']: row for row in json.loads(file.read_text())}
    assert list(rows) == names
    assert [name for name, row in rows.items() if 'error' in row] == []
    assert rows['dgc']['phases'].keys() == {'compute', 'compress', 'communicate', 'wait'}
    assert rows['dgc']['codec_mb'] < rows['dense']['codec_mb'] / 20
    assert rows['dgc']['vs_compute'] > 0 and rows['dgc']['speedup_vs_ddp'] > 0
    assert rows['dgc']['steps'] == 2 and rows['dgc']['nodes'] == 2
    assert 'dgc (torch)' in done.stdout
    assert 'round 2' in done.stderr


@pytest.mark.slow
def test_step_measures_the_dgc_that_pythonpath_names(tmp_path):
    (tmp_path / 'dgc').mkdir()
    (tmp_path / 'dgc' / '__init__.py').write_text('raise SystemExit("another dgc")')
    words = ('--only', 'compute')
    done = run('bench.step', *SHORT, *words, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert 'another dgc' in done.stderr
    assert 'compute (torch)  failed: the workers ended with status 1' in done.stdout


@pytest.mark.slow
@pytest.mark.horovod
def test_step_under_horovodrun(tmp_path):
    file = tmp_path / 'rows.json'
    command = ('--launcher', 'horovodrun', '--only', 'compute,horovod,horovod fp16,dgc')
    done = run('bench.step', *SHORT, *command, '--json', str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [row['name'] for row in rows] == [
        'compute (horovod)',
        'horovod',
        'horovod fp16',
        'dgc (horovod)',
    ]
    assert all(row['median_ms'] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.namespaces
def test_cluster_measures_on_limited_links(tmp_path):
    file = tmp_path / 'rows.json'
    command = ('--nodes', '2', '--rates', '2mbit', '--only', 'compute,ddp,dense,dgc')
    done = run('bench.cluster', *SHORT, *command, '--launcher', 'torchrun', '--json', str(file))
    assert done.returncode == 0, done.stderr
    rows = {row['row']: row for row in json.loads(file.read_text())}
    assert list(rows) == ['compute', 'ddp', 'dense', 'dgc']
    # 36,010 float32, sent once: 144 kB, of which the bucket of the link lets 16 through at once.
    assert rows['dense']['codec_mb'] == pytest.approx(0.14404)
    assert 0.144 < rows['ddp']['kernel_mb'] < 0.2
    assert rows['ddp']['median_ms'] > 8 * (144_040 - 16_000) / 2e6 * 1e3
    assert rows['dgc']['kernel_mb'] < 0.03 < rows['dense']['kernel_mb']
    assert rows['dgc']['speedup_vs_ddp'] > 2
    assert 'fastest at 2mbit: dgc (torch)' in done.stdout
    assert 'dense wins nowhere' in done.stdout
