"""Fetch a folder once, whatever number of processes ask for it at the same time."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ['fetch_once']


def fetch_once(folder: Path, fetch: Callable[[Path], None]) -> None:
    """Make `folder` by way of `fetch(parent)`, which leaves a folder of that name in `parent`.

    The first process to come fetches while the others wait: a lock on a file beside the folder
    needs neither launcher nor communicator. `folder` appears by a rename of what is complete, so
    nobody ever reads a part; what a killed process left is thrown away by the next. Raises what
    `fetch` raises, or OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f'.{folder.name}.partial')
    with _locked(folder.with_name(f'.{folder.name}.lock')):
        if folder.exists():
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
    """Hold an exclusive lock on the file; the system gives it back even if the process dies."""
    with open(path, 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
