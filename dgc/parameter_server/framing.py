"""The frames of ZeroMQ's protocol (ZMTP 3, RFC 37), as far as a gate reads them: their lengths.

    greeting   64 bytes: a signature, the version, the mechanism's name
    frame      flags (1: more frames of this message follow; 2: a long length; 4: a command), the
               length in 1 or 8 bytes, the content

With CURVE the content is encrypted: what follows the handshake is only counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

GREETING = 64  # bytes
MECHANISM = slice(12, 32)  # of the greeting
SIGNATURE = 10  # bytes of a greeting after which a peer expects an answer
MORE, LONG, COMMAND = 1, 2, 4  # flags
MAX_COMMAND = 1024  # bytes; CURVE's longest has about 500
HANDSHAKE = {b'NULL': b'\5READY', b'CURVE': b'\x08INITIATE'}  # a client's last command
ALIVE = (b'\4PING', b'\4PONG')
ENCRYPTION = 33  # bytes that CURVE adds to a message


class Violation(Exception):
    """What a peer sends is no message of ZMTP, or longer than it may be."""


@dataclass
class Limits:
    """What a peer may send.

    Attributes:
        message: Bytes of a message.
        in_flight: Bytes of messages that have arrived and are not taken yet; at least one message
            is let through.
    """

    message: int
    in_flight: int


class Framer:
    """Reads what a peer sends, and decides how much of it may pass.

    Args:
        mechanism: b'NULL' or b'CURVE'.
        limits: May be replaced at any time.
        shortest: Bytes of the shortest message; with CURVE, shorter frames are taken for commands.

    Attributes:
        in_flight: Bytes of messages of which at least the length has passed, and which ``taken``
            has not been told of.
        commands: Commands that have passed since the last message was taken.
        is_greeted: Whether the greeting is complete.
    """

    def __init__(self, mechanism: bytes, limits: Limits, shortest: int) -> None:
        self.limits = limits
        self.in_flight = 0
        self.commands = 0
        self._mechanism = mechanism
        self._shortest = shortest + ENCRYPTION if mechanism == b'CURVE' else 0
        self._seen = bytearray()  # the greeting; or a head, or a command, that is not complete
        self._lengths: deque[int] = deque()  # of messages in flight
        self._body = 0  # bytes of a message that are still to come
        self._greeted = 0  # bytes of the greeting
        self._is_open = False  # whether the handshake is over

    @property
    def is_greeted(self) -> bool:
        """Whether the greeting is complete."""
        return self._greeted == GREETING

    @property
    def has_signature(self) -> bool:
        """Whether enough of the greeting has come for an answer."""
        return self._greeted >= SIGNATURE

    def taken(self, messages: int) -> None:
        """The server has taken ``messages`` messages."""
        for _ in range(min(messages, len(self._lengths))):
            self.in_flight -= self._lengths.popleft()
        self.commands = 0

    def feed(self, data: memoryview) -> tuple[bytes, int]:
        """Read what has arrived.

        Args:
            data: Bytes that follow the ones read before.

        Returns:
            The bytes that may pass, which may begin with kept ones; and how many of ``data`` are
            read. The others wait for room, and are to be fed again.

        Raises:
            Violation: The peer is to be disconnected.
        """
        passed: list[bytes | memoryview] = []
        at = 0
        while at < len(data):
            if self._body:
                size = min(self._body, len(data) - at)
                passed.append(data[at : at + size])
                self._body -= size
            elif not self.is_greeted:
                size = min(GREETING - self._greeted, len(data) - at)
                passed.append(data[at : at + size])
                self._greet(data[at : at + size])
            else:
                size, ready = self._begin(data[at:])
                if not size:
                    break
                passed.append(ready)
            at += size
        return b''.join(passed), at

    def _greet(self, part: memoryview) -> None:
        self._seen += part
        self._greeted = len(self._seen)
        seen = self._seen
        is_wrong = seen[0] != 0xFF or (len(seen) > 9 and seen[9] != 0x7F)
        if is_wrong or (len(seen) > SIGNATURE and seen[SIGNATURE] < 3):
            raise Violation('it sent something that is no message')
        if self.is_greeted:
            if bytes(seen[MECHANISM]).rstrip(b'\0') != self._mechanism:
                raise Violation('it has another key, or none')
            self._seen = bytearray()

    def _begin(self, data: memoryview) -> tuple[int, bytes]:
        """Read the head of a frame; of a command all of it.

        Returns:
            How many bytes are read, 0 where the frame has to wait; and those that may pass.
        """
        kept = len(self._seen)
        self._seen += data[: MAX_COMMAND + 9 - kept]
        head = self._head()
        if head is None:
            return len(data), b''
        flags, start, length = head
        if flags & MORE or flags & ~(LONG | COMMAND):
            raise Violation('it sent a message of several frames')
        if not self._is_open or flags & COMMAND:
            if length > MAX_COMMAND or not flags & COMMAND:
                raise Violation('it sent something that is no message')
            return self._command(start, length, kept, len(data))
        limit = self.limits.message + (ENCRYPTION if self._shortest else 0)
        if length > limit:
            raise Violation(f'it sent a message of {length} bytes, longer than {limit}')
        if length < self._shortest:
            self.commands += 1
        elif self.in_flight and self.in_flight + length > self.limits.in_flight:
            del self._seen[kept:]
            return 0, b''
        else:
            self._lengths.append(length)
            self.in_flight += length
        ready, self._seen = bytes(self._seen[:start]), bytearray()
        self._body = length
        return start - kept, ready

    def _head(self) -> tuple[int, int, int] | None:
        """Flags of the frame, bytes of its head, bytes of its content; None where cut."""
        seen = self._seen
        if not seen or len(seen) < (9 if seen[0] & LONG else 2):
            return None
        if seen[0] & LONG:
            return seen[0], 9, int.from_bytes(seen[1:9], 'big')
        return seen[0], 2, seen[1]

    def _command(self, start: int, length: int, kept: int, arrived: int) -> tuple[int, bytes]:
        """Read a command, whose frame ``_seen`` begins with."""
        end = start + length
        if len(self._seen) < end:
            return arrived, b''
        ready = bytes(self._seen[:end])
        self._seen = bytearray()
        content = ready[start:]
        if self._is_open and not content.startswith(ALIVE):
            raise Violation('it sent something that is no message')
        self._is_open = self._is_open or content.startswith(HANDSHAKE[self._mechanism])
        self.commands += 1
        return end - kept, ready
