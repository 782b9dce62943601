"""A peer of a server that speaks ZeroMQ's protocol (ZMTP 3.1, no key) as well or badly as told."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from dgc.parameter_server import Address

GREETING = b'\xff' + bytes(8) + b'\x7f\x03\x00' + b'NULL'.ljust(20, b'\0') + bytes(32)
READY = b'\x05READY\x0bSocket-Type' + (6).to_bytes(4, 'big') + b'DEALER'
MORE, LONG, COMMAND = 1, 2, 4
SECONDS = 5.0  # that a peer waits for the server


def frame(content: bytes, flags: int = 0) -> bytes:
    """A frame with its head."""
    return head(len(content), flags) + content


def head(length: int, flags: int = 0) -> bytes:
    """The head of a frame whose content has ``length`` bytes."""
    if length < 256:
        return bytes([flags, length])
    return bytes([flags | LONG]) + length.to_bytes(8, 'big')


class Peer:
    """A connection whose handshake is complete."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, SECONDS)
        self._buffer = b''
        self.socket.sendall(GREETING)
        self._take(len(GREETING))
        self.socket.sendall(frame(READY, COMMAND))
        next(self.frames())

    def send(self, content: bytes) -> None:
        """Send a message."""
        self.socket.sendall(frame(content))

    def receive(self) -> bytes:
        """The next message. Raises OSError where none comes."""
        return next(content for flags, content in self.frames() if not flags & COMMAND)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """The next frames: flags, and content."""
        while True:
            flags = self._take(1)[0]
            length = int.from_bytes(self._take(8 if flags & LONG else 1), 'big')
            yield flags, self._take(length)

    def close(self) -> None:
        """Disconnect."""
        self.socket.close()

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError('the server has closed the connection')
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
