"""One node's part in the self-test: sends to the next node of a ring, receives from the previous.

    python probe.py ADDRESS-OF-THE-NEXT MESSAGE BULK MESSAGE-TO-COME BULK-TO-COME

Sizes are in bytes; a bulk may be 0. Prints `ready` when it is connected to both neighbours, reads
from standard input when to send the message and the bulk (seconds of the monotonic clock, which all
namespaces share), and prints when it began to send each, and when it had received each.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

PORT = 7700
PATIENCE = 60.0  # seconds without a byte
CHUNK = bytes(1 << 18)


def connect(address: str) -> socket.socket:
    """Connect to a neighbour, which may not listen yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=PATIENCE)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def send(connection: socket.socket, count: int, start: float) -> float:
    """Send ``count`` bytes from time ``start`` on; return when it began."""
    time.sleep(max(start - time.monotonic(), 0))
    began = time.monotonic()
    for offset in range(0, count, len(CHUNK)):
        connection.sendall(CHUNK[: count - offset])
    return began


def receive(connection: socket.socket, count: int) -> float:
    """Receive ``count`` bytes; return when the last one arrived."""
    buffer = bytearray(len(CHUNK))
    while count:
        received = connection.recv_into(buffer, min(count, len(buffer)))
        if not received:
            raise ConnectionError('the previous node has ended')
        count -= received
    return time.monotonic()


def main(successor: str, message: int, bulk: int, message_to_come: int, bulk_to_come: int) -> None:
    """Send and receive the message and the bulk."""
    with socket.create_server(('', PORT)) as server:
        server.settimeout(PATIENCE)
        outgoing = connect(successor)
        incoming, _ = server.accept()
    incoming.settimeout(PATIENCE)
    arrived: list[float] = []

    def listen() -> None:
        arrived.extend(receive(incoming, count) for count in (message_to_come, bulk_to_come))

    listener = threading.Thread(target=listen)
    listener.start()
    print('ready', flush=True)
    moments = map(float, sys.stdin.readline().split())
    began = [send(outgoing, count, at) for count, at in zip((message, bulk), moments, strict=True)]
    listener.join()
    print(*began, *arrived, flush=True)


if __name__ == '__main__':
    main(sys.argv[1], *map(int, sys.argv[2:]))
