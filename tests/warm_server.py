"""A Python that has imported torch already, and forks a process for each program to run.

    python warm_server.py SOCKET [LIBRARY ...]

Importing torch, its optimizers and scikit-learn takes a process four seconds of processor time,
most of what a short test of processes costs. This server imports them once. ``warm_python`` (beside
this file) takes the place of ``python`` in a command: it sends its arguments, environment, folder
and standard streams, and the server forks a child that runs the program as ``__main__``. No module
of the project is imported before the fork.

What differs from a process of its own: all children have one hash seed and one OMP_NUM_THREADS,
and they live in the server's network namespace.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = (
    *('torch', 'torch._dynamo', 'torch.distributed.launcher', 'torch.utils.data', 'torchvision'),
    *('sklearn.datasets', 'sklearn.model_selection', 'tensorboardX', 'tqdm'),
)
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
STREAMS = 3
STUB = Path(__file__).with_name('warm_python')


@dataclass
class Request:
    """A program to run, as ``warm_python`` was started for it."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]


def receive(connection: socket.socket) -> Request | None:
    """Read a request: u32 length, JSON, with the standard streams; None where it was cut short."""
    head, streams, _, _ = socket.recv_fds(connection, 4, STREAMS)
    raw = b''
    if len(head) == 4 and len(streams) == STREAMS:
        (length,) = struct.unpack('<I', head)
        while len(raw) < length and (piece := connection.recv(length - len(raw))):
            raw += piece
        if len(raw) == length:
            return Request(*json.loads(raw), streams)
    for stream in streams:
        os.close(stream)
    return None


class Server:
    """Forks a child for each connection, and answers with the child's wait status.

    While the child runs, each byte of the connection is a signal for it. The child is killed when
    the connection ends, so that killing ``warm_python`` kills the program that it stands for.
    """

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(sys.stdin, selectors.EVENT_READ, self.end)
        self.children: dict[int, socket.socket] = {}  # process id to its connection

    def serve(self) -> Request:
        """Serve until standard input is closed; returns in each child, with its request."""
        while True:
            for key, _ in self.selector.select():
                if request := key.data(key.fileobj):
                    return request

    def end(self, _: object) -> None:
        """End the server and all children."""
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        os._exit(0)

    def accept(self, listener: socket.socket) -> Request | None:
        """Fork a child for a new connection; returns the request in the child alone."""
        connection, _ = listener.accept()
        request = receive(connection)
        if request is None:
            connection.close()
            return None
        child = os.fork()
        if child == 0:
            os.setsid()
            self.selector.close()
            for other in (listener, connection, *self.children.values()):
                other.close()
            return request
        for stream in request.streams:
            os.close(stream)
        self.children[child] = connection
        exited = os.pidfd_open(child)
        self.selector.register(connection, selectors.EVENT_READ, lambda c: self.forward(c, child))
        self.selector.register(exited, selectors.EVENT_READ, lambda fd: self.answer(fd, child))
        return None

    def forward(self, connection: socket.socket, child: int) -> None:
        """Send a child the signals that ``warm_python`` got, or SIGKILL where that has ended."""
        if child not in self.children:  # reaped in the same round of events
            return
        try:
            signals = connection.recv(16)
        except ConnectionError:
            signals = b''
        for number in signals or [signal.SIGKILL]:
            os.kill(child, number)
        if not signals:
            self.selector.unregister(connection)

    def answer(self, exited: int, child: int) -> None:
        """Reap a child and send its wait status."""
        self.selector.unregister(exited)
        os.close(exited)
        _, status = os.waitpid(child, 0)
        with self.children.pop(child) as connection, contextlib.suppress(ConnectionError):
            if connection in self.selector.get_map():
                self.selector.unregister(connection)
            connection.sendall(struct.pack('<i', status))


def become(request: Request) -> None:
    """Take over the folder, the environment and the standard streams of a request."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through='-u' in request.words)
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = str(STUB)  # for the processes that the program starts itself


def run(words: list[str]) -> None:
    """Run ``[-u] -m MODULE`` or ``[-u] FILE`` with its arguments, as python does."""
    while words and words[0] == '-u':
        words = words[1:]
    more = os.environ.get('PYTHONPATH', '').split(os.pathsep)
    is_module = words[0] == '-m'
    first = str(Path.cwd()) if is_module else str(Path(words[0]).resolve().parent)
    sys.path[0:1] = [first, *filter(None, more)]
    if is_module:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name='__main__')


if __name__ == '__main__':
    sys.path[0] = os.devnull  # tests/ has folders with names of libraries, such as datasets
    for library in (*LIBRARIES, *sys.argv[2:]):
        importlib.import_module(library)
    REQUEST = Server(sys.argv[1]).serve()
    become(REQUEST)
    run(REQUEST.words)
