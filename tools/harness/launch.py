"""Starting worker processes on this machine, and explaining how they ended."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

from tools.harness.spec import SPEC

ROOT = Path(__file__).parents[2]
LAUNCHERS = {'torch': 'torchrun', 'horovod': 'horovodrun'}  # engine → what starts its workers
TIMED_OUT = 124  # exit status, as of timeout(1)
PATIENCE = 10.0  # seconds for a launcher to end its workers and itself


def run_workers(launcher: str, workers: int, module: str, folder: Path, timeout: float) -> int:
    """Run workers on this machine, without a limit of the network between them.

    Args:
        launcher: 'torchrun' or 'horovodrun'.
        workers: number of processes.
        module: what each of them runs, with the path of the specification as its argument.
        folder: has the specification, ``spec.json``; the workers' working folder.
        timeout: seconds after which they are ended.

    Returns:
        The exit status: TIMED_OUT after the timeout, 128 + n if signal n ended the launcher.
    """
    # Python searches the current folder first, so the workers import this dgc, and only dgc, from
    # there: another version of it may be measured by the benchmarks of this one.
    (folder / 'dgc').symlink_to(measured_package())
    words = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    words += ['--nproc-per-node', str(workers), '-m']
    if launcher == 'horovodrun':
        horovodrun = Path(sys.executable).with_name('horovodrun')
        words = [str(horovodrun), '--gloo', '-np', str(workers), sys.executable, '-m']
    process = subprocess.Popen(
        [*words, module, SPEC],
        cwd=folder,
        env=os.environ | environment(),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        end(process)
    return status if status >= 0 else 128 - status


def measured_package() -> Path:
    """Folder of the dgc package to measure: the first on PYTHONPATH, else that of this checkout."""
    paths = [*filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep)), str(ROOT)]
    return next(path for path in map(Path, paths) if (path / 'dgc').is_dir()).absolute() / 'dgc'


def end(launcher: subprocess.Popen[bytes]) -> None:
    """Terminate a launcher, which ends its workers; kill it if that takes too long."""
    launcher.terminate()
    try:
        launcher.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def environment() -> dict[str, str]:
    """Variables for workers: one thread each, and this checkout on the path from any folder."""
    paths = [str(ROOT), os.environ.get('PYTHONPATH', '')]
    return {
        'PYTHONPATH': os.pathsep.join(filter(None, paths)),
        'OMP_NUM_THREADS': os.environ.get('OMP_NUM_THREADS', '1'),
    }


def unavailable(engine: str) -> str:
    """The reason why no worker of an engine can be started here; '' if it can."""
    if engine == 'horovod' and importlib.util.find_spec('horovod') is None:
        return 'Horovod is not installed: make horovod'
    return ''


def describe_status(status: int) -> str:
    """Explain the exit status of a set of workers: 128 + n if signal n ended one of them."""
    if status == TIMED_OUT:
        return 'the workers did not end in time'
    if status - 128 in {*signal.valid_signals()}:
        return f'a worker was ended by {signal.Signals(status - 128).name}'
    return f'the workers ended with status {status}'
