"""A Python that has imported torch already, and forks a process for each program to run.

    python warm_server.py SOCKET [LIBRARY ...]

Importing torch, its optimizers and scikit-learn takes a process four seconds of processor time,
most of what a short test of processes costs. This server imports them once. ``warm_python`` (beside
this file) takes the place of ``python`` in a command: it sends its arguments, environment, folder
and standard streams, and the server forks a child that runs the program as ``__main__``. No module
of the project is imported before the fork.

A child has the limits of ``warm_python`` and enters its namespaces, so that nodes of an emulated
cluster start quickly, too. What differs from a process of its own: all children have one hash seed
and one OMP_NUM_THREADS.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

LIBRARIES = (
    *('torch', 'torch._dynamo', 'torch.distributed.launcher', 'torch.utils.data', 'torchvision'),
    *('sklearn.datasets', 'sklearn.model_selection', 'tensorboardX', 'tqdm'),
)
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
STREAMS = 3
LIMITS = [value for name, value in vars(resource).items() if name.startswith('RLIMIT_')]
NAMESPACES = ('net', 'uts', 'mnt')  # what a node of tools/cluster has for itself


@dataclass
class Request:
    """A program to run, as ``warm_python`` was started for it."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]
    client: int  # process id


def peer(connection: socket.socket) -> int:
    """The id of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize('3i'))
    return struct.unpack('3i', raw)[0]


def join(of: int) -> None:
    """Take over the limits of resources and the namespaces of another process."""
    for limit in LIMITS:
        resource.setrlimit(limit, resource.prlimit(of, limit))
    setns = ctypes.CDLL(None, use_errno=True).setns
    for kind in NAMESPACES:
        theirs, ours = (Path(f'/proc/{process}/ns/{kind}') for process in (of, 'self'))
        if theirs.readlink() != ours.readlink():
            with theirs.open() as file:
                if setns(file.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f'cannot enter {theirs}')


def receive(connection: socket.socket) -> Request | None:
    """Read a request: u32 length, JSON, with the standard streams; None where it was cut short."""
    head, streams, _, _ = socket.recv_fds(connection, 4, STREAMS)
    raw = b''
    if len(head) == 4 and len(streams) == STREAMS:
        (length,) = struct.unpack('<I', head)
        while len(raw) < length and (piece := connection.recv(length - len(raw))):
            raw += piece
        if len(raw) == length:
            return Request(*json.loads(raw), streams, peer(connection))
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
    """Take over the limits, namespaces, folder, environment and standard streams of a request."""
    try:
        join(request.client)
    except (FileNotFoundError, ProcessLookupError):
        os._exit(1)  # the client has been killed, and nobody waits for the program
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
    # For the processes that the program starts itself.
    sys.executable = str(Path(sys.argv[1]).with_name('python'))


def run(words: list[str]) -> None:
    """Run ``[-u]`` with ``-m MODULE``, ``-c CODE`` or ``FILE`` and arguments, as python does."""
    while words and words[0] == '-u':
        words = words[1:]
    more = os.environ.get('PYTHONPATH', '').split(os.pathsep)
    first = str(Path.cwd()) if words[0] in ('-m', '-c') else str(Path(words[0]).resolve().parent)
    sys.path[0:1] = [first, *filter(None, more)]
    if words[0] == '-m':
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
    elif words[0] == '-c':
        sys.argv = ['-c', *words[2:]]
        sys.modules['__main__'] = main = ModuleType('__main__')
        exec(compile(words[1], '<string>', 'exec'), vars(main))
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name='__main__')


if __name__ == '__main__':
    sys.path[0] = os.devnull  # tests/ has folders with names of libraries, such as datasets
    for library in (*LIBRARIES, *sys.argv[2:]):
        importlib.import_module(library)
    # Collections of garbage in the children would copy every page that holds an object of ours:
    # a second of processor time in each of them at its end.
    gc.collect()
    gc.freeze()
    REQUEST = Server(sys.argv[1]).serve()
    become(REQUEST)
    run(REQUEST.words)
