"""Removes the namespaces of a cluster, and whoever runs in them, when their owner is gone.

    python keeper.py PREFIX <pipe

waits until the pipe's other end is closed, by whatever ended its owner: the end of a `with` block,
an exception, kill -9. So there is one way to clean up, and it is the one that is always used. It
runs as a script, on the standard library alone, so that it starts in no time.
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
PATIENCE = 10.0  # seconds for killed processes to be gone


def ours(prefix: str | None = None) -> dict[str, int]:
    """Names that clusters have made, and their owners' process ids; of one cluster, or of all."""
    found = {
        path.name for where in (NAMESPACES, HOSTS) if where.is_dir() for path in where.iterdir()
    }
    matches = [match for match in map(NAME.fullmatch, sorted(found)) if match]
    return {m[0]: int(m[2]) for m in matches if prefix in (None, m[1])}


def leftovers() -> list[str]:
    """Names whose owner is dead, and whose keeper has died with it."""
    return [name for name, owner in ours().items() if not Path(f'/proc/{owner}').exists()]


def inhabitants(names: list[str]) -> list[int]:
    """Process ids of whoever runs in these namespaces, however it came there."""
    identities = set()
    for name in names:
        with contextlib.suppress(OSError):
            identities.add(identity(NAMESPACES / name))
    found = []
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if identity(process / 'ns/net') in identities:
                found.append(int(process.name))
    return found


def identity(path: Path) -> tuple[int, int]:
    """What tells one namespace from another."""
    status = path.stat()
    return status.st_dev, status.st_ino


def kill(names: list[str]) -> None:
    """End everything that runs in these namespaces, and wait until it is gone."""
    deadline = time.monotonic() + PATIENCE
    while (found := inhabitants(names)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def remove(names: list[str]) -> None:
    """Remove namespaces, with their interfaces, their hosts files and whoever runs in them."""
    kill(names)
    for name in names:
        if (NAMESPACES / name).exists():
            subprocess.run(['ip', 'netns', 'del', name], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(HOSTS / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        HOSTS.rmdir()  # where it is empty: it was not there before us


def main(prefix: str) -> None:
    """Wait for the owner to be gone, then remove what it made."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    remove(list(ours(prefix)))


if __name__ == '__main__':
    main(sys.argv[1])
