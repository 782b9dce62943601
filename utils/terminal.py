"""The line of progress: rewritten in a terminal, a line now and then in a file or a pipe.

Whatever else the process prints while the line stands calls ``erase`` first. Imports the standard
library only: the command line is parsed before torch is imported.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

T = TypeVar('T')

IN_TERMINAL = 0.5  # seconds between two updates
ELSEWHERE = 20.0  # each update is a line of a log file
CLEAR = '\r\x1b[K'  # to the beginning of the line, and erase it

standing: list[TextIO] = []  # the terminal that shows a line, if one does


def erase() -> None:
    """Erase the line, so that what is printed next begins at the left."""
    while standing:
        with contextlib.suppress(OSError, ValueError):  # it is gone, or closed
            stream = standing.pop()
            stream.write(CLEAR)
            stream.flush()


class Erases(logging.Filter):
    """Passes every record, after erasing the line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True."""
        erase()
        return True


def shown(items: Iterable[T], text: Callable[[], str], stream: TextIO | None = None) -> Iterator[T]:
    """``items``; while they are used, a line says how far that is.

    Args:
        items: What is iterated over.
        text: Returns the line, after an item has been used.
        stream: Where the line is written; sys.stderr by default.
    """
    stream = sys.stderr if stream is None else stream
    is_terminal = stream.isatty()
    seconds = IN_TERMINAL if is_terminal else ELSEWHERE
    due = time.monotonic() + seconds
    try:
        for item in items:
            yield item
            if time.monotonic() >= due:
                write(stream, text(), is_terminal)
                due = time.monotonic() + seconds
    finally:
        erase()


def write(stream: TextIO, line: str, is_terminal: bool) -> None:
    """Write the line, cut to the width of a terminal. An error, as of a full disk, is ignored."""
    with contextlib.suppress(OSError, ValueError):
        if is_terminal:
            width = shutil.get_terminal_size().columns
            stream.write(f'{CLEAR}{line[: width - 1]}')
            standing[:] = [stream]
        else:
            stream.write(f'{line}\n')
        stream.flush()


def duration(seconds: float) -> str:
    """A duration for people: '12 s', '3 min 5 s', '2 h 10 min'."""
    whole = round(seconds)
    if whole < 60:
        return f'{whole} s'
    if whole < 3600:
        return f'{whole // 60} min {whole % 60} s'
    return f'{whole // 3600} h {whole % 3600 // 60} min'
