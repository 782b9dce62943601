"""What a peer may do to a server of asynchronous training, by accident or on purpose."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from dgc.parameter_server import Address
from dgc.parameter_server.protocol import Kind, Message
from tools.faults.server.peer import LONG, MORE, Peer, frame, head

MANY = 3000  # connections, or messages
VOLUME = 2_500_000_000  # bytes
MEGABYTE = 2**20
PATIENCE = 300.0  # seconds beyond the deadline for what is to be sent


@dataclass
class Target:
    """A server under attack.

    Attributes:
        address: Where it listens.
        join: The body of a JOIN that it accepts.
        longest: Bytes of the longest message that a worker may send.
        deadline: When to stop, by ``time.monotonic``.
        draw: Of times and bytes.
    """

    address: Address
    join: bytes
    longest: int
    deadline: float
    draw: random.Random

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        return time.monotonic() > self.deadline

    @property
    def is_late(self) -> bool:
        """Whether to stop sending an amount that is not complete."""
        return time.monotonic() > self.deadline + PATIENCE

    def wait(self) -> None:
        """Wait until the end."""
        time.sleep(max(self.deadline - time.monotonic(), 0.0))

    def joined(self) -> tuple[Peer, int]:
        """A peer that holds a slot, and its session."""
        peer, session = Peer(self.address), secrets.randbits(63) + 1
        peer.send(Message(Kind.JOIN, session, 1, body=self.join).encode())
        peer.receive()
        return peer, session


def idle(target: Target) -> str:
    """Open connections, and send nothing."""
    return held(target, lambda: socket.create_connection(target.address, 1.0))


def silent(target: Target) -> str:
    """Open connections, complete the handshake, and send nothing."""
    return held(target, lambda: Peer(target.address).socket)


def held(target: Target, connect: Callable[[], socket.socket]) -> str:
    """Open MANY connections and hold them until the end."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < MANY and not target.is_over:
            with contextlib.suppress(OSError):
                sockets.append(connect())
        target.wait()
    finally:
        for each in sockets:
            each.close()
    return f'{len(sockets)} connections'


def churn(target: Target) -> str:
    """Connect and disconnect."""
    count = 0
    while not target.is_over:
        with contextlib.suppress(OSError):
            socket.create_connection(target.address, 1.0).close()
            count += 1
    return f'{count} connections'


def garbage(target: Target) -> str:
    """Send random bytes, half of them after a handshake."""
    count = 0
    while not target.is_over:
        with contextlib.suppress(OSError):
            is_polite = target.draw.random() < 0.5
            side = Peer(target.address).socket if is_polite else \
                socket.create_connection(target.address, 1.0)  # fmt: skip
            with side:
                side.sendall(target.draw.randbytes(target.draw.randrange(1, 100_000)))
            count += 1
    return f'{count} connections'


def unfinished(target: Target, connect: Callable[[], Peer] | None = None) -> str:
    """Send frames of a message that never ends."""
    sent = 0
    block = frame(bytes(min(MEGABYTE, target.longest)), MORE)
    while sent < VOLUME and not target.is_late:
        with contextlib.suppress(OSError):
            peer = connect() if connect else Peer(target.address)
            try:
                while sent < VOLUME and not target.is_late:
                    peer.socket.sendall(block)
                    sent += len(block)
            finally:
                peer.close()
    target.wait()
    return f'{sent / 1e6:,.0f} MB'


def unfinished_joined(target: Target) -> str:
    """The same, after a JOIN."""
    return unfinished(target, lambda: target.joined()[0])


def announced(target: Target) -> str:
    """Announce long messages on many connections, and send half of each."""

    def connect() -> socket.socket:
        side = Peer(target.address).socket
        side.sendall(head(target.longest, LONG) + bytes(target.longest // 2))
        return side

    return held(target, connect)


def requests(target: Target) -> str:
    """Send requests and messages that are refused, and read no answer."""
    count = 0
    while not target.is_over:
        with contextlib.suppress(OSError):
            peer = Peer(target.address)
            try:
                for _ in range(100):
                    kind = target.draw.choice([Kind.JOIN, Kind.PUSH, Kind.LEAVE, Kind.STATISTICS])
                    body = target.draw.randbytes(target.draw.randrange(2000))
                    peer.send(Message(kind, secrets.randbits(63), 1, body=body).encode())
                    count += 1
            finally:
                peer.close()
    return f'{count} messages'


def losses(target: Target) -> str:
    """Join, and report the longest lists of losses."""
    return flood(target, lambda session, _: Message(
        Kind.LOSSES, session, 0, body=bytes((target.longest - 60) // 8 * 8)))  # fmt: skip


def unread(target: Target) -> str:
    """Join again and again, and read none of the models that the server answers."""
    return flood(target, lambda session, n: Message(Kind.JOIN, session, n + 2, body=target.join))


def flood(target: Target, make: Callable[[int, int], Message]) -> str:
    """Join, and send MANY messages."""
    count = 0
    while count < MANY and not target.is_late:
        with contextlib.suppress(OSError, StopIteration):
            peer, session = target.joined()
            try:
                while count < MANY and not target.is_late:
                    peer.send(make(session, count).encode())
                    count += 1
            finally:
                peer.close()
    target.wait()
    return f'{count} messages'


ATTACKS: dict[str, Callable[[Target], str]] = {
    'idle connections': idle,
    'connections that are silent after the handshake': silent,
    'connecting and disconnecting': churn,
    'random bytes': garbage,
    'one message of 2.5 GB in frames': unfinished,
    'the same of a joined peer': unfinished_joined,
    'long messages announced and not completed': announced,
    'messages that are refused': requests,
    '3,000 of the longest LOSSES of a joined peer': losses,
    '3,000 JOINs of a joined peer that reads nothing': unread,
}
