"""Writing the files of a run, so that a failure leaves what was written before intact."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class WriteError(OSError):
    """A file cannot be written during a run. The message is one line: file, reason, remedy."""


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Raise WriteError, with a remedy, where the block cannot write ``path``."""
    try:
        yield
    except WriteError:
        raise
    except (OSError, RuntimeError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            # torch.save ends its archive after Ctrl-C too, which fails halfway through a tensor.
            raise error.__context__ from None
        cause = os_error(error)
        if cause is None:
            raise
        raise WriteError(
            f'{path} cannot be written ({cause.strerror or cause}): make room there, or make it '
            'writable, and start again with --resume; what was written before is complete'
        ) from error


def os_error(error: BaseException | None) -> OSError | None:
    """The OSError that led to ``error``: torch.save raises a RuntimeError while it handles one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def append_line(path: Path, line: str) -> None:
    """Append a line to a file. A part of a line that a full disk or a kill has left stays one.

    Raises:
        OSError: If it cannot be written.
    """
    with path.open('ab+') as file:
        start = b'\n' if file.tell() > 0 and last_byte(file) != b'\n' else b''
        file.write(start + f'{line}\n'.encode())


def last_byte(file: IO[bytes]) -> bytes:
    """The last byte of an open file, which is not empty."""
    file.seek(-1, os.SEEK_END)
    return file.read(1)


@contextmanager
def replacing(path: Path, partial: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write, which replaces ``path`` at the end of the block.

    A process that is killed, or a disk that is full, leaves the old content.

    Args:
        path: What is replaced.
        partial: Written first, in the same folder; ``path`` with .partial by default. Processes
            that write the same path at the same time need different ones.

    Raises:
        WriteError: If it cannot be written.
    """
    partial = partial or path.with_name(f'{path.name}.partial')
    with saving(path):
        try:
            with partial.open('wb') as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)  # it may fill the disk
            raise
