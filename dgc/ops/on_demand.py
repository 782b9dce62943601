"""Compile the C++ kernels where they are first used, once for all processes of a machine."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dgc.ops.build import BuildError, build, compiler_command, find, library_paths
from dgc.ops.cache import CacheError, make_trusted

log = logging.getLogger('dgc')

SWITCH = 'DGC_BUILD'  # 0: nothing is compiled but by ``python -m dgc.ops.build``
FAILED = 'failed.txt'  # beside the library: the compiler that could not compile it, and its error


def build_once() -> Path:
    """Compile the library, or wait for the process of this machine that does.

    A compiler that failed is not tried again: its error is kept in ``failed.txt``.

    Returns:
        The path of the library.

    Raises:
        BuildError: ``DGC_BUILD=0`` is set, there is no compiler, or it failed.
    """
    if os.environ.get(SWITCH) == '0':
        raise BuildError(f'{SWITCH}=0 is set: `python -m dgc.ops.build` compiles them')
    compiler = ' '.join(compiler_command())
    with _locked() as folder:
        found, _ = find()
        if found is not None:
            return found
        failed = folder / FAILED if folder is not None else None
        if failed is not None and failed.is_file():
            tried, reason = _read(failed)
            if tried == compiler:
                raise BuildError(f'{reason} (delete {failed} to try again)')
        log.warning('dgc: compiling the fused kernels, once: about half a minute')
        try:
            return build()
        except BuildError as error:
            # A full disk may have room the next time.
            if failed is not None and not isinstance(error.__cause__, OSError):
                with suppress(OSError):
                    failed.write_text(f'{compiler}\n{error}')
            raise


def _read(failed: Path) -> tuple[str, str]:
    """Return the compiler that failed, and its error; ('', '') where the file cannot be read."""
    try:
        tried, _, reason = failed.read_text(errors='replace').partition('\n')
    except OSError:
        return '', ''
    return tried, reason


@contextmanager
def _locked() -> Iterator[Path | None]:
    """Yield the library's folder, locked against other processes of this machine.

    None, unlocked, where no folder can be written or locked. ``build`` replaces the library
    atomically, so that two processes then compile it twice, and nothing else.
    """
    for cache, path in library_paths().items():
        try:
            make_trusted(path.parent, cache)
            file = (path.parent / '.lock').open('w')
        except (OSError, CacheError):
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # released where this process ends
            except OSError:  # a network file system without locks
                yield None
            else:
                yield path.parent
        return
    yield None
