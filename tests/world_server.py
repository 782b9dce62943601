"""One rank of a world: runs the cases that the tests ask for, one after another (worlds.py).

    LAUNCHER python world_server.py SOCKET

A case is the name of a function, 'module:function', which is called with the engine and the
arguments of the case. The rank answers with what the function returns or with its traceback, and
ends when the tests close the connection.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgc import Engine

ANSWER, ERROR = 'answer', 'error'


def answer(engine: Engine, case: str, arguments: tuple, seconds: float) -> tuple[str, Any]:
    """What the function of a case returns; where it takes too long, all stacks go to stderr."""
    faulthandler.dump_traceback_later(seconds)
    try:
        module, function = case.split(':')
        return ANSWER, getattr(importlib.import_module(module), function)(engine, *arguments)
    except BaseException:
        return ERROR, traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()


def serve(engine: Engine) -> None:
    """Take cases until the connection is closed."""
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(sys.argv[1])
        connection = Connection(plain.detach())
    # Not connection.send(): torch has it put tensors into shared memory.
    connection.send_bytes(pickle.dumps((engine.rank, os.getpid())))
    while True:
        try:
            case, arguments, seconds = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(pickle.dumps(answer(engine, case, arguments, seconds)))


if __name__ == '__main__':
    import torch

    from dgc import engines

    torch.set_num_threads(1)
    engines.run(serve)
