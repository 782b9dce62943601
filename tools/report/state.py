"""Whether a run goes on, has finished or has stopped. Nothing is locked or written for that."""

from __future__ import annotations

import socket
import time
from enum import Enum
from pathlib import Path

LOCK = '.lock'  # of utils.folder: a run holds it locked while it writes
LOCKS = Path('/proc/locks')
FRESH = 120.0  # seconds since the last write of a run on another machine that counts as going on


class State(Enum):
    """Of a run. STOPPED: it ended before its last epoch, by a signal, an error or a kill."""

    RUNNING = 'running'
    FINISHED = 'finished'
    STOPPED = 'stopped'


def locked_inodes() -> frozenset[int]:
    """The inodes of the files that processes of this machine hold locked."""
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return frozenset()
    fields = (line.split() for line in lines)
    return frozenset(
        int(each[5].rpartition(':')[2]) for each in fields if len(each) > 5 and '->' not in each
    )


def last_written(folder: Path) -> float:
    """When a file of the run was written last, in seconds since 1970; 0.0 where there is none."""
    files = (path for path in folder.iterdir() if path.name != LOCK and path.is_file())
    return max((path.stat().st_mtime for path in files), default=0.0)


def state_of(
    folder: Path,
    epochs: int,
    planned: int | None,
    hosts: str,
    locked: frozenset[int],
) -> State:
    """Return the state of a run.

    Args:
        folder: The run folder.
        epochs: Epochs that were measured.
        planned: Epochs of the whole run; None where that is not known.
        hosts: Names of its machines, from environment.txt.
        locked: ``locked_inodes()``.
    """
    lock = folder / LOCK
    if lock.exists() and lock.stat().st_ino in locked:
        return State.RUNNING
    if planned is not None and epochs >= planned:
        return State.FINISHED
    elsewhere = bool(hosts) and socket.gethostname() not in hosts.split()
    if elsewhere and time.time() - last_written(folder) < FRESH:
        return State.RUNNING
    return State.STOPPED
