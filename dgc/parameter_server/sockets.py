"""ZeroMQ sockets as both sides use them: bounded, encrypted where there is a key, watched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from dgc.parameter_server.errors import ServerError
from dgc.parameter_server.keys import Key

CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
GONE = zmq.EVENT_DISCONNECTED
MILLISECONDS = 1000


class Address(NamedTuple):
    """Where a server listens. port: 0 for any that is free."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """As ZeroMQ writes it."""
        return f'tcp://{self.for_people}'

    @property
    def for_people(self) -> str:
        """``host:port``."""
        return f'[{self.host}]:{self.port}' if ':' in self.host else f'{self.host}:{self.port}'


def parse_address(text: str, setting: str) -> Address:
    """``host:port`` or ``[host]:port``. Raises ServerError that names ``setting``."""
    match = re.fullmatch(r'(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]/]+)):(\d{1,5})', text)
    if match is None or int(match[3]) > 65535:
        raise ServerError(f'{setting} = {text!r} is no host:port, such as 127.0.0.1:5555')
    return Address(match[1] or match[2], int(match[3]))


def prepare(socket: zmq.Socket[Any], silence: float, most_bytes: int) -> None:
    """What holds for every socket.

    silence: seconds after which a connection whose other end answers nothing is given up.
    most_bytes: who sends more at once is disconnected before it is allocated.
    """
    socket.linger = 0
    socket.ipv6 = True
    socket.maxmsgsize = most_bytes
    socket.heartbeat_ivl = max(int(silence * MILLISECONDS / 4), 1)
    socket.heartbeat_timeout = int(silence * MILLISECONDS)
    socket.tcp_keepalive = 1


def secure_server(socket: zmq.Socket[Any], key: Key | None) -> None:
    """Let only those in who have the key."""
    if key is not None:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = key.server


def secure_worker(socket: zmq.Socket[Any], key: Key | None) -> None:
    """Talk only to the server of the key."""
    if key is not None:
        socket.curve_serverkey = key.server.public
        socket.curve_publickey, socket.curve_secretkey = key.worker


class Watch:
    """What becomes of a socket's connections."""

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self.socket = socket.get_monitor_socket(CONNECTED | REFUSED | GONE)

    def events(self) -> Iterator[int]:
        """Those that have come since: CONNECTED, one of REFUSED, or GONE."""
        while self.socket.poll(0):
            yield int(recv_monitor_message(self.socket)['event'])
