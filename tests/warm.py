"""Commands of the tests with a Python that has imported torch already (warm_server.py)."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SERVER, STUB = (Path(__file__).with_name(name) for name in ('warm_server.py', 'warm_python'))
PYTHON = sys.executable
BIN = Path(PYTHON).parent
TORCHRUN = [str(STUB), '-m', 'torch.distributed.run']
HOROVODRUN = [str(STUB), str(BIN / 'horovodrun')]
LAUNCHERS = {
    'torchrun': TORCHRUN,
    str(BIN / 'torchrun'): TORCHRUN,
    'horovodrun': HOROVODRUN,
    str(BIN / 'horovodrun'): HOROVODRUN,
}
START = 120.0  # seconds


def warmed(words: Sequence[str]) -> list[str]:
    """A command with ``warm_python`` in the place of python, also behind a launcher."""
    first, *rest = words
    return [
        *LAUNCHERS.get(first, [str(STUB) if first == PYTHON else first]),
        *(str(STUB) if word == PYTHON else word for word in rest),
    ]


@cache
def environment(*libraries: str) -> dict[str, str]:
    """The variables that ``warmed`` commands need. The first call starts the session's server.

    Args:
        libraries: More to import; a server for these is forked from the session's.
    """
    folder = tempfile.TemporaryDirectory(prefix='warm')
    path = Path(folder.name) / 'socket'
    path.with_name('python').symlink_to(STUB)
    horovodrun = path.with_name('horovodrun')  # beside python, as in BIN
    horovodrun.write_text(f'#!/bin/sh\nexec {" ".join(HOROVODRUN)} "$@"\n')
    horovodrun.chmod(0o755)
    server = subprocess.Popen(
        [str(STUB) if libraries else PYTHON, str(SERVER), str(path), *libraries],
        stdin=subprocess.PIPE,
        env=os.environ | {'PYTHONPATH': ''} | (environment() if libraries else {}),
    )
    atexit.register(stop, server, folder)
    deadline = time.monotonic() + START
    while not path.exists():
        assert server.poll() is None and time.monotonic() < deadline, f'{SERVER} did not start'
        time.sleep(0.05)
    # torchrun starts its workers by PYTHON_EXEC where that is set.
    return {'WARM_SERVER': str(path), 'WARM_PLAIN': PYTHON, 'PYTHON_EXEC': str(STUB)}


def stop(server: subprocess.Popen, folder: tempfile.TemporaryDirectory) -> None:
    """End the server, which kills its children; it also ends where this process is killed."""
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
    folder.cleanup()
