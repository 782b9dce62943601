"""A link to a server in the same process: for simulations, by a clock of their own, and tests."""

from __future__ import annotations

import time
from collections.abc import Callable

from dgc.parameter_server import protocol
from dgc.parameter_server.protocol import Kind, Message
from dgc.parameter_server.server import Server
from dgc.parameter_server.settings import ServerError
from dgc.parameter_server.worker import Link


class DirectLink(Link):
    """Hands a worker's messages to ``server``, and returns its replies at once.

    Args:
        server: In this process.
        clock: Returns the seconds that the server is told; by default those of this machine.
    """

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(patience=0.0)
        self.server, self.clock = server, clock

    def request(self, message: Message) -> Message:
        """See :meth:`Link.request`."""
        frame = self.server.handle(message.encode(), self.clock())
        assert frame is not None, 'a request was repeated'
        reply = protocol.decode(frame, protocol.FROM_SERVER)
        if reply.kind is Kind.REFUSED:
            raise ServerError(f'the server says: {reply.text}')
        return reply

    def send(self, message: Message) -> None:
        """See :meth:`Link.send`."""
        self.server.handle(message.encode(), self.clock())
