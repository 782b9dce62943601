"""What an elastic worker tells others that ask: by a connection that it answers with three lines.

Not in its store, whose client tries for seconds to reach a process that is stopped, and prints the
frames of its own code.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import NamedTuple

REACH = 2.0  # seconds to connect to a machine
READ = 1.0  # seconds for an answer; who is stopped gives none
LONGEST = 4096  # bytes of one


class Told(NamedTuple):
    """What a notice says.

    Attributes:
        given_up: The last question to the lighthouse that the worker does not follow the answer of.
        quorum: The key of the last quorum that it has followed; '' for none.
        beat: That of ``dgc.engines.watch``.
    """

    given_up: int
    quorum: str
    beat: str


class Notice:
    """Serves the present notice of a worker, on a thread.

    Args:
        host: The address of this machine by which others reach it.

    Attributes:
        address: Where it is served, as ``host:port``.
        given_up, quorum, beat: As in ``Told``; to be assigned.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ':' in host else socket.AF_INET
        # At all addresses, as a store: the one by which others reach this machine need not be its.
        self._server = socket.create_server(('', 0), family=family, backlog=128)
        self.address = f'{host}:{self._server.getsockname()[1]}'
        self.given_up, self.quorum, self.beat = 0, '', ''
        threading.Thread(target=self._serve, name='dgc-notice', daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(READ)
                text = f'{self.given_up}\n{self.quorum}\n{self.beat}'
                connection.sendall(text.encode())

    def close(self) -> None:
        """Serve no more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        self._server.close()


def read(address: str) -> Told | None:
    """Return what the worker at ``host:port`` tells; None where it does not answer in time.

    Raises:
        OSError: Where nothing listens there: its process is gone, or its machine.
    """
    host, _, port = address.rpartition(':')
    received = b''
    with socket.create_connection((host, int(port)), timeout=REACH) as connection:
        connection.settimeout(READ)
        try:
            while len(received) < LONGEST and (part := connection.recv(LONGEST)):
                received += part
            number, quorum, beat = received.decode(errors='replace').split('\n', 2)
            return Told(int(number), quorum, beat)
        except (TimeoutError, ValueError):
            return None
