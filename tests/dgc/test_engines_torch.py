"""Engines over torch.distributed, made one after another in the same processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from again_worker import TIMES

HERE = Path(__file__).parent
SIZE = 3
TORCHRUN = [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', str(SIZE)]
LAUNCHERS = {
    'torchrun, which keeps the store': [*TORCHRUN, '--standalone'],
    'mpirun, where rank 0 keeps it': [
        *('mpirun', '-np', str(SIZE), '--oversubscribe', '-mca', 'mpi_yield_when_idle', '1'),
        *('-x', 'MASTER_PORT=29641', sys.executable),
    ],
}
NO_MPI = pytest.mark.skipif(not shutil.which('mpirun'), reason='no MPI')


@pytest.mark.parametrize(
    'launcher',
    [
        pytest.param(name, marks=[pytest.mark.mpi, NO_MPI] if 'mpirun' in name else [])
        for name in LAUNCHERS
    ],
)
def test_an_engine_can_be_closed_and_another_made(launcher):
    command = [*LAUNCHERS[launcher], str(HERE / 'again_worker.py')]
    variables = {
        'PYTHONPATH': f'{HERE.parent.parent}{os.pathsep}{HERE}',
        'OMP_NUM_THREADS': '1',
        'OMPI_ALLOW_RUN_AS_ROOT': '1',
        'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
    }
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(f'all {TIMES}\n') == SIZE
