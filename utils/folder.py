"""The folder of a run: made, of this run alone, and sure to be writable."""

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
    """Raises ConfigError where the disk does not let what is done there."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f'{folder} cannot be written ({error.strerror}): give --runs a folder that can be'
        ) from error


def prepare_folder(folder: Path, configs: Config, about: str, moves_aside: bool) -> IO[str]:
    """Make a run's folder, with config.txt and environment.txt.

    A new run does not mix with an older one of the same name, which is moved aside. Returns the
    claim on the folder, to be closed with the run. Raises ConfigError where it cannot be written,
    or where another run writes there.
    """
    with writing(folder):
        if moves_aside and folder.exists():
            claim(folder).close()
            print(f'an earlier run of this name is {move_aside(folder)} from now on', flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        held = claim(folder)
        (folder / 'config.txt').write_text(f'{configs}\n')
        (folder / 'environment.txt').write_text(about)
    return held


def claim(folder: Path) -> IO[str]:
    """Until what this returns is closed, or the process ends, nobody else can claim the folder.

    Raises ConfigError where somebody has: two runs would overwrite each other's checkpoints.
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
        log.warning('%s: no other run is kept from writing there (%s)', folder, error.strerror)
    return lock


def move_aside(folder: Path) -> Path:
    """Rename a folder to the first free of ``folder~1``, ``folder~2``, …, which is returned."""
    free = next(n for n in itertools.count(1) if not Path(f'{folder}~{n}').exists())
    return folder.rename(f'{folder}~{free}')


def check_writable(folder: Path, rank: int) -> None:
    """Make a folder, if it is not there, and a file in it, which does not stay.

    So that no epoch is trained that cannot be saved. Raises ConfigError.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f'r{rank}.partial'
        probe.write_text('probe')
        probe.unlink()
