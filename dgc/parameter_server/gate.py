"""A gate in front of a server's socket: it bounds what peers can make the server keep.

ZeroMQ limits the length of a frame and the number of complete messages in its queues. It limits
neither connections, nor the frames of a message that never ends, nor what peers send before they
have joined. The gate accepts the connections, reads the heads of frames, and passes on to the
server's socket, in a private folder of this machine, what is within the bounds:

    connections         at most a number; where there are more, one that no worker uses is closed
    before a JOIN       messages of at most SHORT bytes
    of a worker         messages as long as the protocol's longest, so many bytes of them in flight;
                        what exceeds them waits at the sender
    frames              one a message
    commands            so many between two messages

It copies bytes, and decrypts none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dgc.parameter_server.framing import ENCRYPTION, Framer, Limits, Violation
from dgc.parameter_server.limited import LimitedLog
from dgc.parameter_server.protocol import HEADER, SHORT
from dgc.parameter_server.settings import Address, ServerError

BLOCK = 2**18  # bytes that are read at a time
MESSAGES = 2  # of the longest kind in flight, of a worker
SHORT_IN_FLIGHT = 4 * SHORT  # bytes, of everybody else
COMMANDS = 10_000  # between two messages; a peer sends a few a minute
GREETING_SECONDS = 10.0  # from a connection to the end of its greeting
SWEEP_SECONDS = 0.5
SOCKETS = 3  # descriptors of a connection: outside, inside, and that of ZeroMQ
SPARE = 96  # descriptors for files, threads and libraries
CONNECTIONS, PER_WORKER = 256, 4  # by default: for anybody, and for each worker
OF_SESSION = 3  # connections of one worker, which uses two and may have lost one
BACKLOG = 512  # connections that the system has accepted for us
LONGEST_PATH = 90  # bytes; a socket's path has at most 107
ACCEPTED_AT_ONCE = 64
CLOSING_SECONDS = 1.0  # in which replies may leave when the gate closes


def most_connections(setting: int | None, workers: int) -> int:
    """Connections that are accepted at the same time.

    Args:
        setting: ``configs.server.connections``.
        workers: Worker slots, each of which uses two connections.

    Raises:
        ServerError: If the limit of open files leaves too few for the workers.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(list(Path('/proc/self/fd').iterdir()))
    except OSError:  # no such folder
        used = SPARE
    possible = (limit - used - SPARE) // SOCKETS
    wanted = CONNECTIONS + PER_WORKER * workers if setting is None else setting
    needed = 2 * workers + 1
    if wanted < needed:
        raise ServerError(
            f'configs.server.connections = {setting} is too few for {workers} workers, which use '
            f'two each: set it to at least {needed}'
        )
    if possible < needed:
        raise ServerError(
            f'{limit} open files are too few for {workers} workers: allow '
            f'{SOCKETS * needed + used + SPARE} with `ulimit -n`, or start with fewer workers'
        )
    return min(wanted, possible)


class Connection:
    """A peer's connection, and its counterpart at the server's socket.

    Attributes:
        peer: Its address.
        session: The worker that uses it; 0 for none.
        begun: When it was accepted.
        last_valid: When the server took a valid message of it, or ``begun``.
        taken: Messages that the server took. Written by the server's thread alone.
        is_dropped: Whether the gate's thread is to close it, for ``reason``.
    """

    def __init__(self, number: int, outside: socket.socket, peer: str, framer: Framer) -> None:
        self.number, self.outside, self.peer, self.framer = number, outside, peer, framer
        self.inside: socket.socket | None = None
        self.session = 0
        self.begun = self.last_valid = time.monotonic()
        self.taken = 0
        self.is_dropped, self.reason = False, ''
        self.counted = 0  # of ``taken``, by the gate's thread
        self.waiting = b''  # from the peer, has to wait for room
        self.up, self.down = b'', b''  # passed, and not written yet
        self.peer_ended, self.server_ended = False, False

    @property
    def is_over(self) -> bool:
        """Whether one side has ended, and what it sent is written."""
        over = self.peer_ended and not self.up and not self.waiting
        return over or (self.server_ended and not self.down)


@dataclass(frozen=True)
class Bounds:
    """What the gate lets through.

    Attributes:
        connections: At the same time.
        message: Bytes of a worker's message.
        encrypted: Whether peers must have a key.
    """

    connections: int
    message: int
    encrypted: bool = False

    @property
    def worker(self) -> Limits:
        """Of a connection on which a worker pushes."""
        return Limits(self.message, MESSAGES * (self.message + ENCRYPTION))

    @property
    def other(self) -> Limits:
        """Of any other connection."""
        return Limits(min(SHORT, self.message), SHORT_IN_FLIGHT)


class Gate:
    """Listens at ``address``, and passes what is within ``bounds`` to the socket at ``endpoint``.

    ``start`` begins it, on a thread of its own; all other methods are called by the server's
    thread.

    Attributes:
        address: Where it listens, with the port that was chosen.
        endpoint: Where the server's socket has to be bound, in ZeroMQ's notation.

    Raises:
        ServerError: If it cannot listen there.
    """

    def __init__(self, address: Address, bounds: Bounds) -> None:
        self.bounds = bounds
        self._log = LimitedLog(__name__)
        self._listener = listen(address)
        self.address = Address(address.host, self._listener.getsockname()[1])
        self._folder = private_folder()
        self.endpoint = f'ipc://{self._folder / "s"}'
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        self._number = 0
        self._draw = random.Random()
        self._block = bytearray(BLOCK)
        self._wake, self._woken = socket.socketpair()
        for each in (self._wake, self._woken, self._listener):
            each.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._is_listening, self._ending, self._deadline = True, False, 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name='gate')

    def start(self) -> None:
        """Accept connections."""
        self._thread.start()

    def stop_listening(self) -> None:
        """Accept no further connections; those that there are go on."""
        self._ending, self._deadline = True, float('inf')
        self._wake_up()

    def close(self) -> None:
        """End all connections, when what the server has sent is written, or after a second."""
        self._ending, self._deadline = True, time.monotonic() + CLOSING_SECONDS
        self._wake_up()
        if self._thread.ident is not None:
            self._thread.join()
        for each in (self._listener, self._wake, self._woken, self._selector):
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._connections.values()))

    def connection_of(self, descriptor: int) -> Connection | None:
        """The connection whose counterpart at the server's socket is ``descriptor``."""
        try:
            return self._connections.get(int(Path(peer_name(descriptor)).name))
        except (OSError, ValueError):  # it has ended meanwhile
            return None

    def took(self, connection: Connection, frames: int) -> None:
        """The server has taken a message of ``connection``: there is room for another."""
        connection.taken += frames
        if connection.waiting:
            self._wake_up()

    def admit(self, connection: Connection, session: int, pushes: bool) -> None:
        """A worker that holds a slot uses ``connection``; of more than three the oldest is dropped.

        Args:
            connection: Of a valid message.
            session: The worker's.
            pushes: Whether it may send messages longer than SHORT.
        """
        if pushes:
            connection.framer.limits = self.bounds.worker
        if connection.session == session:
            return
        connection.session = session
        same = sorted((c for c in self if c.session == session), key=lambda each: each.begun)
        for each in same[:-OF_SESSION]:
            self.drop(each, 'its worker has newer ones')

    def release(self, connection: Connection) -> None:
        """No worker that holds a slot uses ``connection`` any more."""
        connection.session = 0
        connection.framer.limits = self.bounds.other

    def drop(self, connection: Connection, reason: str) -> None:
        """Close ``connection``."""
        connection.reason, connection.is_dropped = reason, True
        self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake anyway; closed: it has ended
            self._wake.send(b'x')

    def _run(self) -> None:
        """The gate's thread."""
        swept = time.monotonic()
        while not (self._ending and self._is_drained()):
            for key, events in self._selector.select(SWEEP_SECONDS):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        while self._woken.recv(BLOCK):
                            continue
                    self._attend()
                else:
                    self._move(key.data, key.fileobj, events)
            if time.monotonic() - swept > SWEEP_SECONDS:
                swept = time.monotonic()
                self._attend()
        for connection in self:
            self._end(connection, '')

    def _is_drained(self) -> bool:
        """Whether the thread may end; stops listening first."""
        if self._is_listening:
            self._is_listening = False
            self._selector.unregister(self._listener)
            self._listener.close()
        if self._deadline == float('inf'):
            return False
        is_written = all(c.server_ended and not c.down for c in self if c.inside is not None)
        return is_written or time.monotonic() > self._deadline

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                outside, where = self._listener.accept()
            except OSError as error:  # none left, or the peer is gone
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._evict()
                return
            outside.setblocking(False)
            with contextlib.suppress(OSError):  # the peer is gone, which reading shows
                outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                outside.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if len(self._connections) >= self.bounds.connections and not self._evict():
                self._log.warning('refused a connection of %s: workers use all of them', where[0])
                outside.close()
                continue
            self._number += 1
            mechanism = b'CURVE' if self.bounds.encrypted else b'NULL'
            framer = Framer(mechanism, self.bounds.other, HEADER.size)
            connection = Connection(self._number, outside, str(where[0]), framer)
            self._connections[self._number] = connection
            self._selector.register(outside, selectors.EVENT_READ, connection)

    def _evict(self) -> bool:
        """Close one of the connections that no worker uses; returns whether there was one.

        Which one is drawn: a flood of connections closes mostly those of its own.
        """
        others = [each for each in self if not each.session]
        if not others:
            return False
        self._end(self._draw.choice(others), 'there are too many')
        return True

    def _attend(self) -> None:
        """Close what is dropped or has not greeted; go on with what waits for room."""
        now = time.monotonic()
        for connection in self:
            if connection.is_dropped:
                self._end(connection, connection.reason)
            elif not connection.framer.is_greeted and now - connection.begun > GREETING_SECONDS:
                self._end(connection, 'it sent no greeting')
            elif connection.waiting or connection.counted != connection.taken:
                self._guarded(connection, lambda each: self._pass_on(each, memoryview(b'')))

    def _move(self, connection: Connection, side: object, events: int) -> None:
        """Read from or write to one side of a connection."""
        if connection.number not in self._connections:
            return  # ended by an earlier event
        if side is connection.outside:
            if events & selectors.EVENT_WRITE:
                self._guarded(connection, self._write_down)
            if events & selectors.EVENT_READ:
                self._guarded(connection, self._read_up)
        else:
            if events & selectors.EVENT_WRITE:
                self._guarded(connection, self._write_up)
            if events & selectors.EVENT_READ:
                self._guarded(connection, self._read_down)

    def _guarded(self, connection: Connection, action: Callable[[Connection], None]) -> None:
        """Do something with a connection, and close it where that fails or ends it."""
        if connection.number not in self._connections:
            return
        try:
            action(connection)
        except Violation as violation:
            self._end(connection, str(violation))
        except OSError:
            self._end(connection, '')
        else:
            if connection.is_over:
                is_refused = connection.server_ended and not connection.taken and not self._ending
                is_key = is_refused and self.bounds.encrypted
                self._end(connection, 'it has another key, or none' if is_key else '')
            else:
                self._watch(connection)

    def _read_up(self, connection: Connection) -> None:
        size = receive(connection.outside, self._block)
        if size == 0:
            connection.peer_ended = True
        if size > 0:
            self._pass_on(connection, memoryview(self._block)[:size])

    def _pass_on(self, connection: Connection, data: memoryview) -> None:
        """Write what a peer has sent to the server, as far as it is within the bounds."""
        framer = connection.framer
        new = connection.taken - connection.counted
        if new:
            framer.taken(new)
            connection.counted += new
        if connection.waiting:
            data = memoryview(connection.waiting + bytes(data))
        passed, read = framer.feed(data)
        connection.waiting = bytes(data[read:])
        if framer.commands > COMMANDS:
            raise Violation('it sends commands alone')
        connection.up += passed
        if connection.inside is None and framer.has_signature:
            connection.inside = self._connect(connection)
        self._write_up(connection)

    def _connect(self, connection: Connection) -> socket.socket:
        """Connect to the server's socket, under a name by which ``connection_of`` finds it."""
        inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inside.setblocking(False)
            path = self._folder / str(connection.number)
            inside.bind(str(path))
            path.unlink()  # the name remains
            inside.connect(str(self._folder / 's'))
        except OSError:
            inside.close()
            raise
        self._selector.register(inside, selectors.EVENT_READ, connection)
        return inside

    def _write_up(self, connection: Connection) -> None:
        if connection.up and connection.inside is not None:
            connection.up = send(connection.inside, connection.up)

    def _read_down(self, connection: Connection) -> None:
        assert connection.inside is not None
        if connection.down:
            return
        size = receive(connection.inside, self._block)
        if size == 0:
            connection.server_ended = True
        if size > 0:
            connection.down = send(connection.outside, memoryview(self._block)[:size])

    def _write_down(self, connection: Connection) -> None:
        if connection.down:
            connection.down = send(connection.outside, connection.down)

    def _watch(self, connection: Connection) -> None:
        """Wait for what a connection can go on with: a side is read once the other took all."""
        reads = not (connection.peer_ended or connection.up or connection.waiting)
        self._select(connection, connection.outside, reads, bool(connection.down))
        if connection.inside is not None:
            reads = not (connection.server_ended or connection.down)
            self._select(connection, connection.inside, reads, bool(connection.up))

    def _select(
        self, connection: Connection, side: socket.socket, reads: bool, writes: bool
    ) -> None:
        events = reads * selectors.EVENT_READ | writes * selectors.EVENT_WRITE
        key = self._selector.get_map().get(side)
        if key is None and events:
            self._selector.register(side, events, connection)
        elif key is not None and not events:
            self._selector.unregister(side)
        elif key is not None and key.events != events:
            self._selector.modify(side, events, connection)

    def _end(self, connection: Connection, reason: str) -> None:
        """Close both sides of a connection."""
        del self._connections[connection.number]
        for side in (connection.outside, connection.inside):
            if side is not None:
                if side in self._selector.get_map():
                    self._selector.unregister(side)
                side.close()
        if reason:
            self._log.warning('closed a connection of %s: %s', connection.peer, reason)
        elif connection.session and not self._ending:
            self._log.info('a connection of %s has ended', connection.peer)


def peer_name(descriptor: int) -> str:
    """The path to which the other side of a local socket is bound. Raises OSError."""
    copy = os.dup(descriptor)
    try:
        side = socket.socket(fileno=copy)
    except OSError:  # it is no socket
        os.close(copy)
        raise
    with side:
        return os.fsdecode(side.getpeername()) if side.family == socket.AF_UNIX else ''


def receive(side: socket.socket, block: bytearray) -> int:
    """Read what has arrived into ``block``; bytes, 0 at the end, -1 for nothing yet."""
    try:
        return side.recv_into(block)
    except (BlockingIOError, InterruptedError):
        return -1


def send(side: socket.socket, data: bytes | memoryview) -> bytes:
    """Write as much as possible; returns the rest."""
    try:
        sent = side.send(data)
    except (BlockingIOError, InterruptedError):
        sent = 0
    return bytes(data[sent:])


def listen(address: Address) -> socket.socket:
    """A socket that listens at ``address``; '*' and '::' are all addresses of this machine.

    Raises:
        ServerError: If that is impossible.
    """
    host = '::' if address.host == '*' and socket.has_dualstack_ipv6() else address.host
    try:
        if host == '::' and socket.has_dualstack_ipv6():
            return socket.create_server(
                (host, address.port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        name = '' if host == '*' else host
        found = socket.getaddrinfo(name or None, address.port, type=socket.SOCK_STREAM,
                                   flags=socket.AI_PASSIVE)  # fmt: skip
        family, *_, where = found[0]
        return socket.create_server(where[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise ServerError(f'the server cannot listen at {address}: {reason}') from error


def private_folder() -> Path:
    """A new folder that only this user can open, with a short path."""
    folder = Path(tempfile.mkdtemp(prefix='dgc-'))
    if len(os.fsencode(folder)) > LONGEST_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix='dgc-', dir='/tmp'))
    return folder
