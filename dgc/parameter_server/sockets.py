"""ZeroMQ connections between a server and its workers, encrypted with a key.

gate.py is in front of the server's socket, and bounds what peers can make it keep.

With a key, CURVE (RFC 26) encrypts every connection and authenticates both sides. The key pairs of
server and workers are derived from one secret; the server accepts the workers' public key alone.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

try:
    import zmq
    from zmq.auth.thread import ThreadAuthenticator
    from zmq.utils import z85
    from zmq.utils.monitor import recv_monitor_message
except ImportError as error:
    raise ImportError(
        f"a parameter server needs pyzmq: pip install 'pyzmq>=26.2' ({error})"
    ) from error

from dgc.parameter_server import protocol
from dgc.parameter_server.gate import BACKLOG, Bounds, Connection, Gate, most_connections
from dgc.parameter_server.limited import LimitedLog
from dgc.parameter_server.protocol import Kind, Message, ProtocolError
from dgc.parameter_server.server import Server
from dgc.parameter_server.settings import SECRET_BYTES, Address, ServerError
from dgc.parameter_server.worker import Link

MILLISECONDS = 1000  # per second

CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
DISCONNECTED = zmq.EVENT_DISCONNECTED

# Replies to who holds a slot.
OF_KNOWN = {Kind.WELCOME, Kind.ANSWER, Kind.DECLINED, Kind.KNOWN, Kind.PENDING}

HANDSHAKE_BYTES = 1024  # no message of CURVE's or ZeroMQ's own is longer
RETRY_SECONDS = 0.5  # between two checks of a worker's patience, or two JOINs to a full server
POLL_SECONDS = 0.1  # between two checks of the server for timeouts
SWEEP_SECONDS = 1.0  # between two looks for connections that no worker uses any more
BUSY_SECONDS = 1.0  # a server that polled less often than this was busy, and extends deadlines
# Replies queued per worker, which has one request at a time; further ones are dropped. Replies as
# long as the model to a peer that requests and never reads would fill the memory otherwise.
QUEUED_MESSAGES = 4


class KeyPair(NamedTuple):
    """A CURVE key pair, each key in Z85."""

    public: bytes
    secret: bytes


class Key(NamedTuple):
    """The key pairs of both sides."""

    server: KeyPair
    worker: KeyPair


def derive_key(secret: bytes) -> Key:
    """Return the key pairs derived from 32 bytes that only the server and its workers have."""

    def pair(role: bytes) -> KeyPair:
        raw = hashlib.blake2b(secret, digest_size=SECRET_BYTES, person=b'dgc ' + role).digest()
        encoded = z85.encode(raw)
        return KeyPair(zmq.curve_public(encoded), encoded)

    return Key(pair(b'server'), pair(b'worker'))


def configure(socket: zmq.Socket[Any], silence: float, max_message_bytes: int) -> None:
    """Set the options that all sockets share.

    Args:
        socket: A socket that is neither bound nor connected yet.
        silence: Seconds without an answer from the peer after which a connection is closed.
        max_message_bytes: A peer that sends a longer message is disconnected before the message is
            allocated.
    """
    socket.linger = 0
    socket.ipv6 = True
    socket.maxmsgsize = max_message_bytes
    socket.heartbeat_ivl = max(int(silence * MILLISECONDS / 4), 1)
    socket.heartbeat_timeout = int(silence * MILLISECONDS)
    socket.tcp_keepalive = 1


def use_worker_key(socket: zmq.Socket[Any], key: Key | None) -> None:
    """Authenticate as a worker, and accept only the server of the same key."""
    if key is not None:
        socket.curve_serverkey = key.server.public
        socket.curve_publickey, socket.curve_secretkey = key.worker


class Monitor:
    """The connection events of a socket."""

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self.socket = socket.get_monitor_socket(CONNECTED | DISCONNECTED)

    def events(self) -> Iterator[int]:
        """Return the events since the last call: CONNECTED or DISCONNECTED."""
        while self.socket.poll(0):
            yield int(recv_monitor_message(self.socket)['event'])


class SocketLink(Link):
    """A worker's connection: a DEALER socket, and heartbeats on a thread and socket of their own.

    Args:
        address: Where the server listens.
        key: The key that the server has too; None for a server without one.
        heartbeat: Seconds between two heartbeats.
        patience: Seconds without a connection before a request raises ServerError.
    """

    def __init__(
        self,
        address: Address,
        key: Key | None = None,
        heartbeat: float = 2.0,
        patience: float = 120.0,
    ) -> None:
        super().__init__(patience)
        self.address = address
        self.key = key
        self.heartbeat = heartbeat
        self.context = zmq.Context()
        self._log = LimitedLog(__name__)
        self._connections = 0
        self._connected = False
        self._last_connected = time.monotonic()
        self._refused = False
        self._is_known = False  # whether the server knows this worker on this connection
        self._heartbeat: Heartbeat | None = None

    def open(self, max_message_bytes: int) -> None:
        """See :meth:`Link.open`. Raises ServerError for an address that ZeroMQ cannot use."""
        self._socket = self.context.socket(zmq.DEALER)
        configure(self._socket, self.patience, max_message_bytes)
        use_worker_key(self._socket, self.key)
        self._monitor = Monitor(self._socket)
        try:
            self._socket.connect(self.address.endpoint)
        except zmq.ZMQError as error:
            raise ServerError(f'{self.address}: {error.strerror}') from error
        self._heartbeat = Heartbeat(self)

    def request(self, message: Message) -> Message:
        """See :meth:`Link.request`. The message is sent again after each reconnection, since a
        broken connection may have lost it or its reply."""
        frame = message.encode()
        self._reconnected()
        self._send_or_greet(message, frame)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor.socket, zmq.POLLIN)
        while True:
            poller.poll(int(RETRY_SECONDS * MILLISECONDS))
            while self._socket.poll(0):
                try:
                    received = self._socket.recv(copy=False).buffer
                    reply = protocol.decode(received, protocol.FROM_SERVER)
                except ProtocolError as error:
                    raise ServerError(f'{self.address} is no parameter server: {error}') from error
                if reply.kind is Kind.REFUSED:
                    raise ServerError(f'the server at {self.address} says: {reply.text}')
                if (reply.session, reply.sequence) != (message.session, message.sequence):
                    continue
                self._is_known = self._is_known or reply.kind in OF_KNOWN
                if reply.kind is not Kind.KNOWN:
                    return reply  # also where the server has ended since, after the last LEAVE
                self._send(frame)
            if self._reconnected():
                self._send_or_greet(message, frame)
            self._check_patience()

    def send(self, message: Message) -> None:
        """See :meth:`Link.send`. It is dropped on a connection on which the server does not know
        this worker yet, and would take the message for a stranger's."""
        self._reconnected()
        if self._is_known:
            self._send(message.encode())

    def pause(self) -> None:
        """Wait for half a second."""
        time.sleep(RETRY_SECONDS)

    def close(self) -> None:
        """See :meth:`Link.close`. May be called twice."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self.context.destroy(linger=MILLISECONDS)

    def _send_or_greet(self, message: Message, frame: bytes) -> None:
        """Send a request; or a HELLO before it, where the server would close a new connection on
        which a PUSH comes first."""
        if self._is_known or message.kind is not Kind.PUSH:
            self._send(frame)
        else:
            self._send(Message(Kind.HELLO, message.session, message.sequence).encode())

    def _send(self, frame: bytes) -> None:
        """Queue a frame, or drop it where ZeroMQ has given the connection up, as after a handshake
        with another key: a blocking send would then wait forever."""
        try:
            self._socket.send(frame, zmq.DONTWAIT, copy=False)
        except zmq.Again:
            self._log.debug('no connection to %s', self.address)

    def _reconnected(self) -> bool:
        """Process connection events; return whether the connection was opened again."""
        reconnected = False
        for event in self._monitor.events():
            if event & CONNECTED:
                self._connected, self._refused = True, False
                self._connections += 1
                reconnected = self._connections > 1
                self._is_known = self._is_known and not reconnected
            elif event & DISCONNECTED:
                if self._connected:
                    self._log.warning('the connection to %s is lost', self.address)
                    self._last_connected = time.monotonic()
                self._refused = self._refused or not self._connected
                self._connected = False
        return reconnected

    def _check_patience(self) -> None:
        silent = time.monotonic() - self._last_connected
        if self._connected or silent < self.patience:
            return
        hint = 'is it running?'
        if self._refused:
            hint = 'it hangs up at once: have both the same configs.server.key?'
        raise ServerError(
            f'no parameter server at {self.address} for {silent:.0f} s '
            f'(configs.server.patience): {hint}'
        )


class Heartbeat:
    """Sends heartbeats from a thread of its own, however long a backward pass takes."""

    def __init__(self, link: SocketLink) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(link,), daemon=True)
        self._thread.start()

    def _run(self, link: SocketLink) -> None:
        frame = Message(Kind.HEARTBEAT, link.session, 0).encode()
        with link.context.socket(zmq.DEALER) as socket:
            configure(socket, link.patience, HANDSHAKE_BYTES)
            use_worker_key(socket, link.key)
            socket.immediate = True  # a heartbeat is not queued for a later connection
            socket.sndhwm = 1
            socket.connect(link.address.endpoint)
            while not self._stopped.wait(link.heartbeat):
                try:
                    socket.send(frame, zmq.DONTWAIT)
                except zmq.Again:  # no connection
                    continue

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()


class Service:
    """A server's ROUTER socket, and the loop that passes messages to ``server`` and sends replies.

        with Service(server, Address('127.0.0.1', 0), key=None) as service:
            service.run()

    Args:
        server: The state machine.
        address: Where to listen.
        key: The key that workers must have; None to accept every connection.
        silence: Seconds without an answer from a peer after which its connection is closed.
        connections: Connections at the same time; None for as many as settings.py says.

    Attributes:
        address: Where it listens, with the port that was chosen.

    Raises:
        ServerError: If it cannot listen there, or the limit of open files is too low.
    """

    def __init__(
        self,
        server: Server,
        address: Address,
        key: Key | None = None,
        silence: float = 120.0,
        connections: int | None = None,
    ) -> None:
        self.server = server
        self._log = LimitedLog(__name__)
        most = most_connections(connections, server.budget.worker_slots)
        bounds = Bounds(most, server.max_message_bytes, encrypted=key is not None)
        self._gate = Gate(address, bounds)
        self.address = self._gate.address
        self._known: dict[bytes, Connection] = {}  # by ZeroMQ's name of a peer
        self._swept = time.monotonic()
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._socket = self._context.socket(zmq.ROUTER)
        configure(self._socket, silence, server.max_message_bytes)
        self._socket.set_hwm(QUEUED_MESSAGES)
        self._socket.backlog = BACKLOG
        if key is not None:
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback('*', OnlyKey(key.worker.public))
            self._socket.curve_server = True
            self._socket.curve_publickey, self._socket.curve_secretkey = key.server
        try:
            self._socket.bind(self._gate.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ServerError(f'the server cannot listen at {address}: {error.strerror}') from error
        self._gate.start()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. Replies in flight have one second to arrive."""
        self._gate.stop_listening()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=MILLISECONDS)
        self._gate.close()

    def run(self, between: Callable[[], bool] = lambda: True) -> None:
        """Serve until all updates have been made and all workers have left.

        Args:
            between: Called between messages, at least ten times per second; False stops the loop.
        """
        polled = self._swept = time.monotonic()
        for connection in self._gate:  # they may have waited for this to begin
            connection.last_valid = polled
        while not self.server.drained and between():
            if self._socket.poll(int(POLL_SECONDS * MILLISECONDS)):
                self._serve_one()
            now = time.monotonic()
            if now - polled > BUSY_SECONDS:  # heartbeats may be waiting in the socket
                self.server.extend_deadlines(now - polled)
                self._extend_deadlines(now - polled)
            polled = now
            self.server.tick(now)
            if now - self._swept > SWEEP_SECONDS:
                self._swept = now
                self._sweep(now)
            if not self._gate.is_alive:
                raise RuntimeError('the gate of the parameter server has ended: see above')

    def _serve_one(self) -> None:
        sender, *frames = self._socket.recv_multipart(copy=False)
        name = sender.bytes
        connection = self._connection(name, frames[0]) if frames else None
        peer = connection.peer if connection is not None else 'a worker'
        reply = None
        if len(frames) == 1:
            reply = self.server.handle(frames[0].buffer, time.monotonic(), peer)
        else:
            self._log.warning('refused a message from %s: it has %d frames', peer, len(frames))
        if connection is not None:
            if len(frames) == 1:
                self._judge(connection, frames[0].buffer)
            self._gate.took(connection, len(frames))
        if reply is not None:
            # ZeroMQ drops it where the worker is gone, which requests again when it reconnects.
            self._socket.send_multipart([name, reply], copy=False)

    def _connection(self, name: bytes, frame: zmq.Frame) -> Connection | None:
        """The connection at the gate through which a message came; None where it has ended."""
        if name not in self._known:
            try:
                found = self._gate.connection_of(int(frame.get(zmq.SRCFD)))
            except zmq.ZMQError:
                found = None
            if found is None:
                return None
            self._known[name] = found
        return self._known[name]

    def _judge(self, connection: Connection, frame: memoryview) -> None:
        """Let a worker that holds a slot send long messages on the connection it pushes on."""
        try:
            message = protocol.decode(frame, protocol.FROM_WORKER)
        except ProtocolError:
            return
        connection.last_valid = time.monotonic()
        if self.server.workers.get(message.session) is not None:
            pushes = message.kind is not Kind.HEARTBEAT
            self._gate.admit(connection, message.session, pushes)

    def _sweep(self, now: float) -> None:
        """Close connections that no worker uses and that send nothing valid."""
        for connection in self._gate:
            if connection.session and self.server.workers.get(connection.session) is None:
                self._gate.release(connection)
            if not connection.session and connection.last_valid < now - self.server.timeout:
                self._gate.drop(connection, 'no worker uses it')
        there = set(self._gate)
        self._known = {name: each for name, each in self._known.items() if each in there}

    def _extend_deadlines(self, seconds: float) -> None:
        """Discount a time in which no messages were read."""
        for connection in self._gate:
            connection.last_valid += seconds


class OnlyKey:
    """The callback of pyzmq's authenticator: accepts one public key."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether ``key`` is the workers' public key."""
        return key == self._public
