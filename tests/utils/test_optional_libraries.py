"""The library and synchronous training work where pyzmq and Horovod cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).parents[2]
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)

assert not {blocked} & set(sys.modules), 'already imported'
sys.meta_path.insert(0, Blocked())
"""
TRAIN = """
import runpy
sys.argv = ['train.py', '--configs', {configs}, '--devices', 'cpu', '--runs', {runs!r},
            '--configs.train.num_epochs', '1', '--configs.train.warmup_lr_epochs', '0']
runpy.run_path('train.py', run_name='__main__')
"""


def run(blocked: set[str], code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        warm.warmed([sys.executable, '-c', BLOCK.format(blocked=blocked) + code]),
        cwd=ROOT, env=os.environ | warm.environment(), capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    'module',
    [
        'dgc',
        'dgc.parameter_server',
        'configs',
        'utils.build',
        'utils.agree',
        'train',
        'utils.listing',
    ],
)
def test_modules_are_imported_without_pyzmq_and_horovod(module):
    done = run({'zmq', 'horovod'}, f'import {module}')
    assert done.returncode == 0, done.stderr


def test_synchronous_training_works_without_pyzmq(tmp_path):
    configs = "'configs/digits/cnn.py', 'configs/dgc/wm5.py'"
    done = run({'zmq', 'horovod'}, TRAIN.format(configs=configs, runs=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert 'epoch 0: ' in done.stdout


def test_a_parameter_server_without_pyzmq_is_refused_in_one_line(tmp_path):
    configs = "'configs/digits/cnn.py', 'configs/dgs/dgs.py'"
    done = run({'zmq'}, TRAIN.format(configs=configs, runs=str(tmp_path)))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pip install 'pyzmq>=26.2'" in line


def test_everything_else_is_listed_without_pyzmq():
    done = run(
        {'zmq'},
        'from utils.listing import *\nfrom utils.cli import *\nprint(listing(DECLARATIONS))',
    )
    assert done.returncode == 0, done.stderr
    assert 'configs/dgs/' in done.stdout and 'compress_ratio' in done.stdout
