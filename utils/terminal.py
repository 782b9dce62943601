"""The line of progress: rewritten in a terminal, a line now and then in a file or a pipe.

Whatever else the process prints while the line stands calls ``erase`` first. Does not import torch:
the command line is parsed before.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from tqdm import tqdm

T = TypeVar('T')

IN_TERMINAL = 0.5  # seconds between two updates
ELSEWHERE = 20.0  # each update is a line of a log file

standing: list[Line] = []  # the line that a terminal shows, if one does


class Line(tqdm):
    """A line that is rewritten in a terminal, of a text in place of tqdm's bar.

    Args:
        items: What is iterated over.
        text: Returns the line.
        stream: The terminal. Errors of one that is gone are ignored.
    """

    monitor_interval = 0  # no thread: an item that takes long may leave the line as it is

    def __init__(self, items: Iterable[T], text: Callable[[], str], stream: TextIO) -> None:
        self._text = text
        times = {'mininterval': IN_TERMINAL, 'delay': IN_TERMINAL, 'miniters': 1}
        super().__init__(items, file=stream, leave=False, **times)

    def __str__(self) -> str:
        return self._text()[: shutil.get_terminal_size().columns - 1]


def erase() -> None:
    """Erase the line, so that what is printed next begins at the left."""
    for line in standing:
        line.clear()


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
    if not stream.isatty():
        yield from logged(items, text, stream)
        return
    with Line(items, text, stream) as line:
        standing.append(line)
        try:
            yield from line
        finally:
            standing.remove(line)


def logged(items: Iterable[T], text: Callable[[], str], stream: TextIO) -> Iterator[T]:
    """``items``, with whole lines in a file or a pipe, where tqdm would write carriage returns."""
    due = time.monotonic() + ELSEWHERE
    for item in items:
        yield item
        if time.monotonic() >= due:
            with contextlib.suppress(OSError, ValueError):  # as of a full disk
                stream.write(f'{text()}\n')
                stream.flush()
            due = time.monotonic() + ELSEWHERE


def duration(seconds: float) -> str:
    """A duration for people: '12 s', '3 min 5 s', '2 h 10 min'."""
    whole = round(seconds)
    if whole < 60:
        return f'{whole} s'
    if whole < 3600:
        return f'{whole // 60} min {whole % 60} s'
    return f'{whole // 3600} h {whole % 3600 // 60} min'
