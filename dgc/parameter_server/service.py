"""A server's socket, and the loop that serves it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from dgc.parameter_server import sockets
from dgc.parameter_server.errors import ServerError
from dgc.parameter_server.keys import Key
from dgc.parameter_server.server import Server
from dgc.parameter_server.sockets import MILLISECONDS, Address, Watch

log = logging.getLogger(__name__)
PAUSE = 0.1  # seconds between two looks at what is not a message
BUSY = 1.0  # seconds after which a pause was one in which nobody listened
# Messages each way that wait for a worker, which has one request under way; further replies are
# dropped. As many as a model's length, of a peer that asks and never reads, would fill the memory.
WAITING = 4


class OneKey:
    """Lets in whoever has the workers' key, and nobody else."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Of pyzmq's authenticator."""
        return key == self._public


class Service:
    """A ROUTER socket that hands every message to ``server`` and carries its replies.

        with Service(server, Address('127.0.0.1', 0), key=None) as service:
            service.run()

    address: where to listen; ``service.address`` has the port that it came to.
    key: who may connect; None: everybody who can reach the address.
    silence: seconds after which a connection that answers nothing is given up.
    Raises ServerError where it cannot listen there.
    """

    def __init__(
        self, server: Server, address: Address, key: Key | None = None, silence: float = 120.0
    ) -> None:
        self.server = server
        self._context = zmq.Context()
        self._authenticator = self._authenticate(key)
        self._socket = self._context.socket(zmq.ROUTER)
        sockets.prepare(self._socket, silence, server.most_bytes)
        self._socket.set_hwm(WAITING)
        sockets.secure_server(self._socket, key)
        self._watch = Watch(self._socket)
        try:
            self._socket.bind(address.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ServerError(
                f'the server cannot listen at {address.for_people}: {error.strerror}'
            ) from error
        port = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(':')[2]
        self.address = Address(address.host, int(port))

    def _authenticate(self, key: Key | None) -> ThreadAuthenticator | None:
        if key is None:
            return None
        authenticator = ThreadAuthenticator(self._context)
        authenticator.start()
        authenticator.configure_curve_callback('*', OneKey(key.worker.public))
        return authenticator

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; replies under way have a second to arrive."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=MILLISECONDS)

    def run(self, between: Callable[[], bool] = lambda: True) -> None:
        """Serve until training is over and every worker knows it.

        between: called between messages, at least ten times a second; False stops at once.
        """
        self._listened = time.monotonic()
        while not self.server.drained and between():
            if self._socket.poll(int(PAUSE * MILLISECONDS)):
                self._serve_one()
            self._look_around()

    def _serve_one(self) -> None:
        sender, *frames = self._socket.recv_multipart(copy=False)
        peer = peer_of(frames[0]) if frames else ''
        if len(frames) != 1:
            log.warning('refused a message from %s: it has %d frames', peer, len(frames))
            return
        reply = self.server.handle(frames[0].buffer, time.monotonic(), peer)
        if reply is not None:
            # Dropped where the worker is gone: it asks again when it is back.
            self._socket.send_multipart([sender.bytes, reply], copy=False)

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._listened > BUSY:  # signs of life may be waiting to be read
            self.server.membership.excuse(now - self._listened)
        self._listened = now
        self.server.tick(now)
        for event in self._watch.events():
            if event & sockets.REFUSED:
                log.warning('refused a connection: it has another key, or none')
            elif event & sockets.GONE and not self.server.finished:
                log.info(
                    'a connection ended: a worker has gone, or somebody sent what is no message '
                    'or is longer than %d bytes',
                    self.server.most_bytes,
                )


def peer_of(frame: Any) -> str:
    """The address of who sent a frame."""
    try:
        return str(frame.get('Peer-Address'))
    except zmq.ZMQError:
        return 'somebody'
