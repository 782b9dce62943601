"""Who says what: rank 0's output as it is; every other rank's on stderr, with its rank before each
line, so that stdout is rank 0's alone."""

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
    """Hands on what comes out of a pipe, in whole lines or as it comes."""

    def __init__(self, source: IO[bytes], sink: Sink, by_line: bool) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._sink = sink
        self._by_line = by_line
        self.start()

    def run(self) -> None:
        """Until the last process that holds the other end has closed it."""
        while part := self._next():
            self._sink(part)
        self._source.close()

    def _next(self) -> bytes:
        if self._by_line:
            return self._source.readline()
        return self._source.read1(65536)  # type: ignore[attr-defined]


def to(file: int) -> Sink:
    """Writes to a file descriptor, all of it."""
    raw = open(file, 'wb', buffering=0, closefd=False)  # noqa: SIM115

    def write(part: bytes) -> None:
        rest = memoryview(part)
        while rest:
            rest = rest[raw.write(rest) :]

    return write


def labelled(rank: int) -> Sink:
    """Writes whole lines to stderr with the rank before each."""
    write = to(STDERR)
    return lambda line: write(b'[%d] %s\n' % (rank, line.rstrip(b'\n')))


class Untagged:
    """Writes lines of all ranks together, which mpirun has tagged, to where they belong.

    It puts a tag where a line begins and where another rank goes on in the middle of one.
    """

    def __init__(self, stdout: int) -> None:
        self._stdout = to(stdout)
        self._stderr = to(STDERR)
        self._begun: dict[bytes, bytes] = defaultdict(bytes)  # lines, by rank

    def __call__(self, line: bytes) -> None:
        """Take a line, as mpirun wrote it."""
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
