"""Where the compiled kernels are kept, and whether what is found there may be loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


class CacheError(RuntimeError):
    """What is in a cache cannot be trusted; the text says why."""


def cache_folders() -> Iterator[Path]:
    """Yield the folders for caches, best first.

    They are ``$XDG_CACHE_HOME`` or ``~/.cache``, if the user has a home folder, and a folder of
    this user below the temporary one, for containers whose home is missing or of another user.
    """
    if configured := os.environ.get('XDG_CACHE_HOME'):
        yield Path(configured)
    else:
        with contextlib.suppress(RuntimeError):  # neither HOME nor an entry in the password file
            yield Path.home() / '.cache'
    yield Path(tempfile.gettempdir()) / f'dgc-cache-{os.geteuid()}'


def make_trusted(folder: Path, cache: Path) -> None:
    """Create a folder below ``cache``, and those above it.

    Raises:
        OSError: It cannot be created or written.
        CacheError: Other users may change what is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_trusted(folder, cache)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def check_trusted(path: Path, cache: Path) -> None:
    """Check that only this user and root can have written a file or folder below ``cache``.

    It and the folders above it must belong to one of them, and must not be writable by every user.
    The cache itself may belong to others. Above its own folder a folder may be writable by every
    user where the sticky bit keeps them from replacing what is not theirs, as in /tmp.

    Raises:
        OSError: The path does not exist, or cannot be read.
        CacheError: Another user could have written it.
    """
    path, cache = path.resolve(strict=True), cache.resolve(strict=True)
    for place in (path, *path.parents):
        status = place.stat()
        if status.st_uid not in (0, os.geteuid()) and place != cache:
            raise CacheError(f'{place} belongs to another user (number {status.st_uid})')
        protected = place not in (path, path.parent) and bool(status.st_mode & stat.S_ISVTX)
        if status.st_mode & stat.S_IWOTH and not protected:
            raise CacheError(f'{place} can be written by every user')
        if place == cache:
            return  # otherwise a symbolic link leads elsewhere, and all folders above are checked
