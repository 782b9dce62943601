"""The run folder: created, locked for one run, and checked to be writable."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from utils.config import Config, ConfigError

LOCK = '.lock'  # the file in a run folder that its run holds locked
ATTEMPTS = 100  # at a lock, while other jobs rename the folder

log = logging.getLogger(__name__)

locks: weakref.WeakSet[IO[str]] = weakref.WeakSet()  # the locks of this process


def forget() -> None:
    """Close what a child process has inherited of the locks, which stay those of its parent.

    A process that loads data lives some seconds longer than a rank that was killed. It would keep
    the folder locked for the next start of the run.
    """
    for lock in locks:
        lock.close()


os.register_at_fork(after_in_child=forget)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise ConfigError, with a remedy, for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f'{folder} cannot be written ({error.strerror}): give --runs a folder that can be'
        ) from error


def prepare_folder(folder: Path, configs: Config, about: str, moves_aside: bool) -> IO[str]:
    """Create a run folder with config.txt and environment.txt.

    Args:
        folder: The folder.
        configs: The resolved configuration.
        about: The content of environment.txt.
        moves_aside: Whether an existing folder is renamed first, for a new run.

    Returns:
        The lock on the folder, to be closed at the end of the run.

    Raises:
        ConfigError: If the folder cannot be written, or another run writes there.
    """
    with writing(folder):
        held = claim(folder)
        if moves_aside and any(path.name != LOCK for path in folder.iterdir()):
            # The lock on the earlier folder is held until the new one is locked: another job that
            # starts now finds the one or the other locked, and moves neither.
            with held:
                moved = move_aside(folder)
                held = claim(folder)
            print(f'an earlier run of this name was renamed to {moved}', flush=True)
        (folder / 'config.txt').write_text(f'{configs}\n')
        (folder / 'environment.txt').write_text(about)
    return held


def claim(folder: Path) -> IO[str]:
    """Create the folder if necessary, and lock it until the returned file is closed or the process
    ends.

    Raises ConfigError if another run holds the lock: two runs would overwrite each other's
    checkpoints.
    """
    for _ in range(ATTEMPTS):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = (folder / LOCK).open('w')
        except FileNotFoundError:  # another job has just renamed the folder
            continue
        locks.add(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            break
        except OSError as error:
            log.warning(
                '%s cannot be locked (%s): do not start a second run there', folder, error.strerror
            )
            return lock
        if is_at(lock, folder / LOCK):
            return lock
        lock.close()  # that of a folder which another job has renamed since it was opened
    raise ConfigError(
        f'another run is writing {folder}: give this one a --suffix, or end the other'
    )


def is_at(file: IO[str], path: Path) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def move_aside(folder: Path) -> Path:
    """Rename a folder to the first free name of ``folder~1``, ``folder~2``, …; returns it."""
    free = next(n for n in itertools.count(1) if not Path(f'{folder}~{n}').exists())
    return folder.rename(f'{folder}~{free}')


def check_writable(folder: Path, rank: int) -> None:
    """Create a folder if necessary, and write and remove a file in it.

    Called before training, so that no epoch is trained that cannot be saved. Raises ConfigError.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f'r{rank}.partial'
        probe.write_text('probe')
        probe.unlink()
