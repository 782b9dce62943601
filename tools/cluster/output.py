"""Passing on the output of workers: rank 0's unchanged, that of other ranks to stderr.

Each line of the other ranks begins with the rank; stdout has only rank 0's output."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import IO

STDERR = 2
TAG = re.compile(rb'\[\d+,(\d+)\]<(stdout|stderr)>:')  # of mpirun --tag-output

Sink = Callable[[bytes], None]


class Pump(threading.Thread):
    """A thread that passes on what is written to a pipe, by whole lines or immediately."""

    def __init__(self, source: IO[bytes], sink: Sink, by_line: bool) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._sink = sink
        self._by_line = by_line
        self.start()

    def run(self) -> None:
        """Pass on until the last process that has the other end open has closed it."""
        while part := self._next():
            self._sink(part)
        self._source.close()

    def _next(self) -> bytes:
        if self._by_line:
            return self._source.readline()
        return self._source.read1(65536)  # type: ignore[attr-defined]


def to(file: int) -> Sink:
    """A sink that writes everything to a file descriptor."""
    raw = open(file, 'wb', buffering=0, closefd=False)  # noqa: SIM115

    def write(part: bytes) -> None:
        rest = memoryview(part)
        while rest:
            rest = rest[raw.write(rest) :]

    return write


def labelled(rank: int) -> Sink:
    """A sink that writes whole lines to stderr, each after its rank."""
    write = to(STDERR)
    return lambda line: write(b'[%d] %s\n' % (rank, line.rstrip(b'\n')))


class Untagged:
    """A sink for lines of all ranks that mpirun has tagged, which separates them by rank.

    mpirun writes a tag at the start of each line, and wherever the output of another rank continues
    within a line.

    Args:
        stdout: file descriptor for rank 0's standard output.
    """

    def __init__(self, stdout: int) -> None:
        self._stdout = to(stdout)
        self._stderr = to(STDERR)
        self._begun: dict[bytes, bytes] = defaultdict(bytes)  # incomplete lines, by rank

    def __call__(self, line: bytes) -> None:
        """Pass on a line that mpirun wrote."""
        own, *tagged = TAG.split(line)
        if own:
            self._stderr(own)
        for rank, stream, part in zip(tagged[::3], tagged[1::3], tagged[2::3], strict=True):
            if rank == b'0':
                (self._stdout if stream == b'stdout' else self._stderr)(part)
            else:
                self._take(rank, part)

    def _take(self, rank: bytes, part: bytes) -> None:
        self._begun[rank] += part
        if part.endswith(b'\n'):
            labelled(int(rank))(self._begun.pop(rank))
