"""The run folder: created, locked for one run, and checked to be writable."""

from __future__ import annotations

import fcntl
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from utils.config import Config, ConfigError

log = logging.getLogger(__name__)


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
        if moves_aside and folder.exists():
            claim(folder).close()
            print(f'an earlier run of this name was renamed to {move_aside(folder)}', flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        held = claim(folder)
        (folder / 'config.txt').write_text(f'{configs}\n')
        (folder / 'environment.txt').write_text(about)
    return held


def claim(folder: Path) -> IO[str]:
    """Lock the folder until the returned file is closed or the process ends.

    Raises ConfigError if another run holds the lock: two runs would overwrite each other's
    checkpoints.
    """
    lock = (folder / '.lock').open('w')
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f'another run is writing {folder}: give this one a --suffix, or end the other'
        ) from None
    except OSError as error:
        log.warning(
            '%s cannot be locked (%s): do not start a second run there', folder, error.strerror
        )
    return lock


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
