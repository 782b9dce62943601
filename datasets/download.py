"""Fetch a folder once, however many processes request it at the same time."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ['fetch_once']


def fetch_once(folder: Path, fetch: Callable[[Path], None]) -> None:
    """Create `folder` unless it exists, in one of all processes; the others wait.

    A lock on a file beside the folder excludes other processes, without a communicator. `folder` is
    renamed into place once it is complete, so no process reads a part of it, and what a killed
    process has left is removed by the next. Where it exists nothing is written beside it, so that
    data may be read-only.

    Args:
        folder: The folder to create.
        fetch: Called with a parent folder, in which it creates a folder of the same name.

    Raises:
        OSError: If the folder cannot be written; also whatever `fetch` raises.
    """
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f'.{folder.name}.partial')
    with _locked(folder.with_name(f'.{folder.name}.lock')):
        if folder.exists():  # by now
            return
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            fetch(partial)
            (partial / folder.name).rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file, which the system releases if the process dies."""
    with open(path, 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
