"""A worker's connection to its server: requests that are answered once, however often it breaks."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod

import zmq

from dgc.parameter_server import protocol, sockets
from dgc.parameter_server.errors import ServerError
from dgc.parameter_server.keys import Key
from dgc.parameter_server.protocol import Kind, Message, ProtocolError
from dgc.parameter_server.sockets import MILLISECONDS, Address, Watch

log = logging.getLogger(__name__)
HANDSHAKE = 1024  # bytes: no message of CURVE's or ZeroMQ's own is longer
PAUSE = 0.5  # seconds between two looks at the clock, and before a full server is asked again


class Link(ABC):
    """Carries a worker's messages.

    session: of this worker process, drawn anew for each.
    patience: seconds without a server, or without a free place, after which a worker gives up.
    """

    def __init__(self, patience: float = 120.0) -> None:
        self.session = secrets.randbits(63) + 1
        self.patience = patience

    def open(self, most_bytes: int) -> None:
        """Begin to carry messages of at most so many bytes."""

    @abstractmethod
    def request(self, message: Message) -> Message:
        """The reply to ``message``. Raises ServerError where there is none."""

    @abstractmethod
    def tell(self, message: Message) -> None:
        """Send what has no reply; it may be lost."""

    def pause(self) -> None:
        """Before the same is asked again."""

    def close(self) -> None:
        """Carry nothing more."""


class SocketLink(Link):
    """A DEALER socket, with a heartbeat of its own thread and socket beside it.

    address: of the server. key: that the server has too.
    heartbeat: seconds between signs of life.
    patience: see Link.
    """

    def __init__(
        self,
        address: Address,
        key: Key | None = None,
        heartbeat: float = 2.0,
        patience: float = 120.0,
    ) -> None:
        super().__init__(patience)
        self._address = address
        self._key = key
        self._period = heartbeat
        self._context = zmq.Context()
        self._connections = 0
        self._connected = False
        self._lost = time.monotonic()  # when there was a connection last
        self._refused = False
        self._heartbeat: Heartbeat | None = None

    def open(self, most_bytes: int) -> None:
        """See :meth:`Link.open`. Raises ServerError for an address that makes no sense."""
        self._socket = self._context.socket(zmq.DEALER)
        sockets.prepare(self._socket, self.patience, most_bytes)
        sockets.secure_worker(self._socket, self._key)
        self._watch = Watch(self._socket)
        try:
            self._socket.connect(self._address.endpoint)
        except zmq.ZMQError as error:
            raise ServerError(f'{self._address.for_people}: {error.strerror}') from error
        self._heartbeat = Heartbeat(self)

    def request(self, message: Message) -> Message:
        """See :meth:`Link.request`. It is sent again whenever a connection has been made anew,
        since what was under way on the old one may be lost."""
        frame = message.write()
        self._socket.send(frame, copy=False)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._watch.socket, zmq.POLLIN)
        while True:
            poller.poll(int(PAUSE * MILLISECONDS))
            if self._is_new_connection():
                self._socket.send(frame, copy=False)
            while self._socket.poll(0):
                reply = self._receive()
                if reply.kind is Kind.REFUSED:
                    raise ServerError(f'the server at {self.place} says: {reply.text}')
                if (reply.session, reply.sequence) == (message.session, message.sequence):
                    return reply
            self._check_patience()

    def tell(self, message: Message) -> None:
        """See :meth:`Link.tell`."""
        self._socket.send(message.write(), copy=False)

    def pause(self) -> None:
        """Half a second."""
        time.sleep(PAUSE)

    def close(self) -> None:
        """See :meth:`Link.close`. May be called twice."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._context.destroy(linger=MILLISECONDS)

    @property
    def place(self) -> str:
        """Where the server is."""
        return self._address.for_people

    def heartbeat_socket(self) -> zmq.Socket[bytes]:
        """A socket for signs of life, which are worth nothing later."""
        socket = self._context.socket(zmq.DEALER)
        sockets.prepare(socket, self.patience, HANDSHAKE)
        sockets.secure_worker(socket, self._key)
        socket.immediate = True
        socket.sndhwm = 1
        socket.connect(self._address.endpoint)
        return socket

    @property
    def period(self) -> float:
        """Seconds between signs of life."""
        return self._period

    def _receive(self) -> Message:
        try:
            return protocol.read(self._socket.recv(copy=False).buffer, protocol.FROM_SERVER)
        except ProtocolError as error:
            raise ServerError(f'{self.place} is no parameter server: {error}') from error

    def _is_new_connection(self) -> bool:
        """Whether a connection has been made that is not the first."""
        anew = False
        for event in self._watch.events():
            if event & sockets.CONNECTED:
                self._connected, self._refused = True, False
                self._connections += 1
                anew = self._connections > 1
            elif event & sockets.GONE:
                if self._connected:
                    log.warning('the connection to %s is lost', self.place)
                    self._lost = time.monotonic()
                self._refused = self._refused or not self._connected
                self._connected = False
        return anew

    def _check_patience(self) -> None:
        silent = time.monotonic() - self._lost
        if self._connected or silent < self.patience:
            return
        hint = 'is it running?'
        if self._refused:
            hint = 'it hangs up at once: have both the same configs.server.key?'
        raise ServerError(
            f'no parameter server at {self.place} for {silent:.0f} s (configs.server.patience): '
            f'{hint}'
        )


class Heartbeat:
    """Signs of life, however long a backward pass takes."""

    def __init__(self, link: SocketLink) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(link,), daemon=True)
        self._thread.start()

    def _beat(self, link: SocketLink) -> None:
        frame = Message(Kind.HEARTBEAT, link.session, 0).write()
        with link.heartbeat_socket() as socket:
            while not self._over.wait(link.period):
                try:
                    socket.send(frame, zmq.DONTWAIT)
                except zmq.Again:  # no connection
                    continue

    def stop(self) -> None:
        """Send no more."""
        self._over.set()
        self._thread.join()
