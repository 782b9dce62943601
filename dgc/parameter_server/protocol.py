"""Messages between a server and its workers. All of it is little-endian, and none of it pickled.

    offset  bytes  field
         0      4  magic, b'DGS' and the version of this format
         4      2  kind
         6      2  place: the number of a worker among those that may train at once
         8      8  session: drawn by each worker process when it starts
        16      8  sequence: of a worker's requests, from 1; a reply has that of its request
        24      8  ticket: drawn by the server whenever it hands a worker the model; 0 before that
        32      8  version: from a server, updates that the model has taken in
        40      8  update: which of its session's updates a PUSH is, from 1; else 0
        48      8  length: bytes of the body
        56      …  body

    from a worker   body                                      reply
    JOIN            a digest of 32 bytes for each aspect      WELCOME, FULL, FINISHED, REFUSED
    PUSH            a section for each bucket (sections.py)   ANSWER, FINISHED, REJOIN, REFUSED
    LEAVE           nothing                                   GOODBYE
    LOSSES          float64 training losses of the last steps none
    STATISTICS      float32 buffers of the model, in order    none
    HEARTBEAT       nothing                                   none

    from a server   body
    WELCOME         places, updates in all, steps an epoch (u64 each); a dense section for each
                    bucket; float32 buffers of the model
    ANSWER          a section for each bucket: to be added where sparse, θ itself where dense
    FINISHED        nothing: all updates have been made
    REJOIN          nothing: the session is not known (any more)
    FULL            nothing: every place is taken
    GOODBYE         nothing
    REFUSED         UTF-8 text: why

A request is sent again when a connection had to be made anew, so it may come twice. It counts once:
a server knows the last sequence of each session, and gives the same reply to the same sequence; it
knows the last update of each session, also when it has been started anew, and takes in none twice;
and who pushes with another ticket than the last has to join again, since the record is not its own.

A receiver trusts nothing: what does not fit is refused with a ProtocolError. Sockets drop who sends
more than ``most_bytes``, before it is allocated.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

VERSION = 1
MAGIC = b'DGS' + bytes([VERSION])
HEADER = struct.Struct('<4sHHQQQQQQ')
MOST_PLACES = 2**16 - 1
MOST_TEXT = 1024  # bytes of a refusal
WELCOME_NUMBERS = struct.Struct('<QQQ')


class ProtocolError(ValueError):
    """A message that nobody who speaks this protocol has sent."""


class Kind(IntEnum):
    """What a message is; see the module."""

    JOIN = 1
    PUSH = 2
    LEAVE = 3
    LOSSES = 4
    STATISTICS = 5
    HEARTBEAT = 6
    WELCOME = 16
    ANSWER = 17
    FINISHED = 18
    REJOIN = 19
    FULL = 20
    GOODBYE = 21
    REFUSED = 22


FROM_WORKER = frozenset(kind for kind in Kind if kind < Kind.WELCOME)
FROM_SERVER = frozenset(Kind) - FROM_WORKER
TOLD = frozenset({Kind.LOSSES, Kind.STATISTICS, Kind.HEARTBEAT})  # nobody waits for a reply


class Message(NamedTuple):
    """See the module. body: shares the storage of what it was read from."""

    kind: Kind
    session: int
    sequence: int
    place: int = 0
    ticket: int = 0
    version: int = 0
    update: int = 0
    body: bytes | memoryview = b''

    def write(self) -> bytes:
        """As one frame."""
        who = (self.kind, self.place, self.session, self.sequence, self.ticket)
        return HEADER.pack(MAGIC, *who, self.version, self.update, len(self.body)) + self.body

    def reply(self, kind: Kind, **fields: Any) -> Message:
        """The reply to this request."""
        return Message(kind, self.session, self.sequence, **fields)

    @property
    def text(self) -> str:
        """The body of a refusal, fit to be printed in one line."""
        raw = bytes(self.body[:MOST_TEXT]).decode(errors='replace')
        return ' '.join(''.join(c if c.isprintable() else ' ' for c in raw).split())


def read(frame: bytes | memoryview, expected: frozenset[Kind]) -> Message:
    """The message in ``frame``, of an expected kind. Raises ProtocolError."""
    if len(frame) < HEADER.size:
        raise ProtocolError(f'{len(frame)} bytes are no message: a header has {HEADER.size}')
    magic, kind, *numbers, length = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise ProtocolError(f'a message begins with {bytes(magic)!r}, not {MAGIC!r}')
    if kind not in expected:
        raise ProtocolError(f'a message of kind {kind} was not to come from there')
    if length != len(frame) - HEADER.size:
        raise ProtocolError(
            f'a body of {length} bytes was announced, {len(frame) - HEADER.size} came'
        )
    body = memoryview(frame)[HEADER.size :]
    place, session, sequence, ticket, version, update = numbers
    return Message(Kind(kind), session, sequence, place, ticket, version, update, body)


def refusal(request: Message | None, reason: str) -> Message:
    """The reply that says why; to whatever it was, where that could not be read."""
    body = reason.encode()[:MOST_TEXT]
    if request is None:
        return Message(Kind.REFUSED, 0, 0, body=body)
    return request.reply(Kind.REFUSED, body=body)
