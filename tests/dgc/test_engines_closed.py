"""What a closed engine leaves: nothing that the next one, or the process's end, trips over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from again_worker import TIMES

from dgc.engines import EngineError, LocalEngine

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


class Threaded(LocalEngine):
    """Alone, with a thread of its own as engines have that carry something."""

    has_thread = True


class TestClosed:
    def test_its_thread_is_gone_and_what_was_submitted_is_done(self):
        before = {*threading.enumerate()}
        engine, release, done = Threaded(), threading.Event(), []
        engine.submit(release.wait)
        engine.submit(lambda: done.append('both'))
        assert {*threading.enumerate()} - before
        release.set()
        engine.close()
        assert done == ['both']
        assert not {*threading.enumerate()} - before

    @pytest.mark.parametrize(
        'call',
        [
            lambda engine: engine.barrier(),
            lambda engine: engine.all_reduce(torch.ones(2)),
            lambda engine: engine.submit(print),
        ],
        ids=['barrier', 'all_reduce', 'submit'],
    )
    def test_a_later_call_is_refused_instead_of_waiting_for_ever(self, call):
        engine = Threaded()
        engine.close()
        with pytest.raises(EngineError, match='the engine is closed'):
            call(engine)
