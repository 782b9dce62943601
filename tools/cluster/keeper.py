"""Removes the namespaces of a cluster, and ends all processes in them, when its owner has ended.

    python keeper.py PREFIX <pipe

waits until the other end of the pipe is closed, which happens however the owner ends: at the end of
a `with` block, by an exception, by kill -9. All of them clean up in this one way. It runs as a
script that uses only the standard library, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMESPACES = Path('/run/netns')  # where `ip netns` keeps their names
HOSTS = Path('/etc/netns')  # /etc/netns/NAME/hosts is /etc/hosts inside the namespace
NAME = re.compile(r'(dgc(\d+)(?:-\d+)?)(?:n\d+|sw)')  # prefix with its owner's pid, then node
PATIENCE = 10.0  # seconds for killed processes to end


def ours(prefix: str | None = None) -> dict[str, int]:
    """Names of namespaces and the process ids of their owners, of one cluster or of all."""
    found = {
        path.name for where in (NAMESPACES, HOSTS) if where.is_dir() for path in where.iterdir()
    }
    matches = [match for match in map(NAME.fullmatch, sorted(found)) if match]
    return {m[0]: int(m[2]) for m in matches if prefix in (None, m[1])}


def leftovers() -> list[str]:
    """Names of namespaces that outlived both their owner and its keeper."""
    return [name for name, owner in ours().items() if not Path(f'/proc/{owner}').exists()]


def inhabitants(names: list[str]) -> list[int]:
    """Ids of all processes in these namespaces, however they were started."""
    identities = set()
    for name in names:
        with contextlib.suppress(OSError):
            identities.add(identity(NAMESPACES / name))
    found = []
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):  # the process has ended
            if identity(process / 'ns/net') in identities:
                found.append(int(process.name))
    return found


def identity(path: Path) -> tuple[int, int]:
    """Device and inode, which identify a namespace."""
    status = path.stat()
    return status.st_dev, status.st_ino


def kill(names: list[str]) -> None:
    """Kill all processes in these namespaces, and wait until they have ended."""
    deadline = time.monotonic() + PATIENCE
    while (found := inhabitants(names)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def remove(names: list[str]) -> None:
    """Remove namespaces, with their interfaces, hosts files and processes."""
    kill(names)
    for name in names:
        if (NAMESPACES / name).exists():
            subprocess.run(['ip', 'netns', 'del', name], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(HOSTS / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        HOSTS.rmdir()  # only if it is empty


def main(prefix: str) -> None:
    """Wait until the owner has ended, then remove its namespaces."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    remove(list(ours(prefix)))


if __name__ == '__main__':
    main(sys.argv[1])
