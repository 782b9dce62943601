"""Starting one of the workers beside the tests under a real launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LAUNCHERS = {
    'horovodrun': ['horovodrun', '--gloo', '-np', '{size}', sys.executable],
    'mpirun': ['mpirun', '--oversubscribe', '-mca', 'mpi_yield_when_idle', '1',
               '-np', '{size}', sys.executable],
    'torchrun': [sys.executable, '-m', 'torch.distributed.run', '--standalone',
                 '--nproc-per-node', '{size}'],
}  # fmt: skip


def start(launcher: str, size: int, worker: str, *arguments: str) -> str:
    """What ``size`` processes of a file in this folder say on stdout; asserts that they succeed."""
    command = [word.format(size=size) for word in LAUNCHERS[launcher]]
    environment = os.environ | {
        'PYTHONPATH': f'{HERE.parent.parent}{os.pathsep}{HERE}',
        'PATH': f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}',
        'OMP_NUM_THREADS': '1',
        'OMPI_ALLOW_RUN_AS_ROOT': '1',
        'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
    }
    done = subprocess.run(
        [*command, str(HERE / worker), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
