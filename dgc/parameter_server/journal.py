"""A journal: the updates that a server has applied since a checkpoint, in a file.

An update is written before it is acknowledged, and a server that is started again applies what the
journal holds. The answers to workers are not in it: they join again and get the whole model.

    offset  bytes  field of a record
         0      4  MAGIC
         4      4  CRC-32 of what follows the next field
         8      8  length: bytes of the body
        16     64  version, session, update number, slot, staleness, received, sent, elements
        80      …  body: the update's sections, as in protocol.py
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = b'DGJ1'
RECORD = struct.Struct('<4sIQ')
FIELDS = struct.Struct('<8Q')


class Update(NamedTuple):
    """What is recorded about one applied update.

    Attributes:
        version: Updates that the model includes, with this one.
        slot: The worker's slot.
        staleness: Updates of other workers since the model that this one was computed on.
        received: Bytes of the update.
        sent: Bytes of its answer.
        elements: Elements in both.
    """

    version: int
    slot: int
    staleness: int
    received: int
    sent: int
    elements: int


class Entry(NamedTuple):
    """An applied update, with all that applies it again.

    Attributes:
        session: The worker process that pushed it.
        number: Its number among the updates of that session.
        update: What is recorded about it.
        body: Its sections.
    """

    session: int
    number: int
    update: Update
    body: bytes | memoryview

    def encode(self) -> bytes:
        """Return the record."""
        version, *others = self.update
        content = FIELDS.pack(version, self.session, self.number, *others) + self.body
        return RECORD.pack(MAGIC, zlib.crc32(content), len(self.body)) + content


class Journal:
    """A journal that is being written.

    Args:
        path: The file, which is emptied.
        synced: Whether each record is on the disk before ``append`` returns, so that it survives a
            power cut too. Otherwise it is in the system's memory, and survives the process.

    Attributes:
        size: Bytes written.

    Raises:
        OSError: If the file cannot be made.
    """

    def __init__(self, path: Path, synced: bool = False) -> None:
        self.path = path
        self.size = 0
        self._synced = synced
        self._file = path.open('wb', buffering=0)

    def append(self, entry: Entry) -> None:
        """Write a record. Raises OSError, after removing what was written of it."""
        record = memoryview(entry.encode())
        written = 0
        try:
            while written < len(record):
                written += self._file.write(record[written:]) or 0
            if self._synced:
                os.fsync(self._file.fileno())
        except OSError:
            self._file.seek(self.size)
            self._file.truncate()
            raise
        self.size += len(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JournalError(ValueError):
    """A record is cut or damaged; those before it are whole."""


def read(path: Path) -> Iterator[Entry]:
    """The records of a journal in order.

    Raises:
        JournalError: At a record that is cut or damaged.
        OSError: If the file cannot be read.
    """
    with path.open('rb') as file:
        left = path.stat().st_size
        while left:
            head = file.read(RECORD.size)
            magic, checksum, length = (
                RECORD.unpack(head) if len(head) == RECORD.size else (b'', 0, 0)
            )
            left -= RECORD.size + FIELDS.size + length
            if magic != MAGIC or left < 0:
                raise JournalError('a record is cut or damaged')
            content = file.read(FIELDS.size + length)
            if zlib.crc32(content) != checksum:
                raise JournalError('a record is damaged')
            version, session, number, *others = FIELDS.unpack_from(content)
            body = memoryview(content)[FIELDS.size :]
            yield Entry(session, number, Update(version, *others), body)
