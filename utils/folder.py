"""The folder of a run: made, not mixed with an older one, and sure to be writable."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.config import Config, ConfigError


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises ConfigError where the disk does not let what is done there."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f'{folder} cannot be written ({error.strerror}): give --runs a folder that can be'
        ) from error


def prepare_folder(folder: Path, configs: Config, about: str, moves_aside: bool) -> None:
    """Make a run's folder, with config.txt and environment.txt.

    A new run does not mix with an older one of the same name, which is moved aside. Raises
    ConfigError where it cannot be written.
    """
    with writing(folder):
        if moves_aside:
            move_aside(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'config.txt').write_text(f'{configs}\n')
        (folder / 'environment.txt').write_text(about)


def move_aside(folder: Path) -> None:
    """Rename a folder that is there already to the first free of ``folder~1``, ``folder~2``, …"""
    if folder.exists():
        free = next(n for n in itertools.count(1) if not Path(f'{folder}~{n}').exists())
        folder.rename(f'{folder}~{free}')


def check_writable(folder: Path, rank: int) -> None:
    """Make a folder, if it is not there, and a file in it, which does not stay.

    So that no epoch is trained that cannot be saved. Raises ConfigError.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f'r{rank}.partial'
        probe.write_text('probe')
        probe.unlink()
