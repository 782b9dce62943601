"""One pair of versions: an environment of its own, the wheel, the kernels, some of the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tools.wheel.build import ROOT

# Wrapper, hook, kernels, codecs and real processes under torchrun.
TESTS = (
    'tests/dgc/test_ops_native.py',
    'tests/dgc/test_sgd.py',
    'tests/dgc/test_optimizer.py',
    'tests/dgc/test_optimizer_checkpoints.py',
    'tests/dgc/test_optimizer_loops.py',
    'tests/dgc/test_hooks.py',
    'tests/dgc/test_groups.py',
    'tests/dgc/test_handshake.py',
    'tests/dgc/test_algorithms.py',
    'tests/dgc/test_parameter_server_sockets.py',
)
TESTERS = ('pytest', 'pytest-timeout', 'pytest-xdist', 'hypothesis', 'setuptools', 'wheel')
KERNELS = """
import torch, numpy
from dgc import ops
kernels = 'compiled' if ops.is_native(torch.device('cpu')) else 'plain'
print(torch.__version__, numpy.__version__, kernels)
"""


class Outcome(NamedTuple):
    """A row of the table. What was not reached is ''."""

    python: str
    torch: str
    numpy: str
    kernels: str
    result: str
    seconds: float
    ok: bool


def trial(python: str, version: str, torch: str, wheel: Path, folder: Path) -> Outcome:
    """Install the wheel beside a torch, and run the tests of the checkout with both.

    Args:
        python: the program.
        version: of Python, for the table.
        torch: the version, as pip takes it.
        wheel: of this project.
        folder: where the environment is made, and its logs ``install.log`` and ``tests.log``.
    """
    start = time.monotonic()
    installed = install(python, torch, wheel, folder)
    numpy = kernels = ''
    ok, result = False, installed
    if not installed:
        ok, result, (torch, numpy, kernels) = tested(folder, torch)
    return Outcome(version, torch, numpy, kernels, result, time.monotonic() - start, ok)


def install(python: str, torch: str, wheel: Path, folder: Path) -> str:
    """Make the environment; return '' or why it cannot be made."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    logged([python, '-m', 'venv', str(folder / 'venv')], folder / 'install.log')
    pip = [str(folder / 'venv/bin/python'), '-m', 'pip', 'install', '--no-cache-dir']
    wanted = [f'{wheel}[train,server]', f'torch=={torch}', *TESTERS]
    status, text = logged([*pip, *wanted], folder / 'install.log')
    if status:
        errors = [line for line in text.splitlines() if line.startswith('ERROR')]
        return f'not installed: {errors[-1][7:] if errors else "see install.log"}'
    return ''


def tested(folder: Path, torch: str) -> tuple[bool, str, tuple[str, str, str]]:
    """Return whether the tests passed, pytest's closing line, and the versions in use."""
    python = str(folder / 'venv/bin/python')
    status, text = logged([python, '-c', KERNELS], folder / 'tests.log')
    if status:
        return False, f'import failed: {text.strip().splitlines()[-1]}', (torch, '', '')
    torch, numpy, kernels = text.splitlines()[-1].split()
    command = [python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', *TESTS]
    status, text = logged(command, folder / 'tests.log')
    closing = re.findall(r'^(\d+ (?:passed|failed|error).*?) in [\d.]+s', text, re.M)
    return status == 0, closing[-1] if closing else 'see tests.log', (torch, numpy, kernels)


def logged(command: list[str], log: Path) -> tuple[int, str]:
    """Run a command in the checkout, append its output to a file; return its status and output."""
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONDONTWRITEBYTECODE': '1'}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    with log.open('a') as file:
        file.write(f'$ {" ".join(command)}\n{done.stdout}\n')
    return done.returncode, done.stdout
