"""The Pythons of this machine, and those that it can install."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TIMEOUT = 300.0  # seconds for an installer


class Python(NamedTuple):
    """A version such as '3.12', and its program, or the reason why there is none."""

    version: str
    path: str | None
    missing: str = ''


def obtain(version: str) -> Python:
    """Find a Python, else install it with apt or uv, whichever the machine has."""
    path = find(version)
    if path is not None:
        return Python(version, path)
    refusals = []
    for name, command in installers(version):
        last = run(command)
        path = find(version)
        if path is not None:
            return Python(version, path)
        refusals.append(f'{name}: {last}')
    return Python(version, None, '; '.join(refusals) or 'neither apt-get (as root) nor uv is here')


def find(version: str) -> str | None:
    """Return a working program of this version, with its module venv; None where there is none."""
    return next((path for path in candidates(version) if makes_environments(path)), None)


def candidates(version: str) -> Iterator[str]:
    """Yield the paths where a Python may be: on PATH, of pyenv, of uv."""
    on_path = shutil.which(f'python{version}')
    if on_path is not None:
        yield on_path
    pyenv = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv'))
    uv = Path(os.environ.get('XDG_DATA_HOME', Path.home() / '.local/share')) / 'uv/python'
    yield from map(str, sorted(pyenv.glob(f'versions/{version}.*/bin/python{version}')))
    yield from map(str, sorted(uv.glob(f'cpython-{version}.*/bin/python{version}')))


def makes_environments(path: str) -> bool:
    """Whether a program starts (pyenv's stand-ins may not) and has venv and pip's ensurepip."""
    done = subprocess.run([path, '-c', 'import ensurepip, venv'], capture_output=True)
    return done.returncode == 0


def installers(version: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the names and commands of what may install this version here."""
    if os.geteuid() == 0 and shutil.which('apt-get'):
        packages = [f'python{version}{part}' for part in ('', '-venv', '-dev')]
        yield 'apt', ['apt-get', 'install', '-yq', '--no-install-recommends', *packages]
    if shutil.which('uv'):
        yield 'uv', ['uv', 'python', 'install', version]


def run(command: list[str]) -> str:
    """Run an installer; return the last line that it printed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f'it took more than {TIMEOUT:g} s'
    lines = f'{done.stdout}\n{done.stderr}'.split('\n')
    return next((line.strip() for line in reversed(lines) if line.strip()), 'no message')
