"""Asynchronous training with a parameter server, sparsified in both directions (DGS).

A server holds the model. Workers push updates and pull what has changed, each at its own pace:

    composition.py  the parts: memory, compressors up and down, codec, scaling of stale updates
    worker.py       WorkerOptimizer, whose step pushes an update and pulls an answer
    server.py       Server, the state machine that answers; without sockets and clocks
    model.py        θ and the records θ_w, in flat tensors
    protocol.py     the messages, byte by byte
    journal.py      the file of updates since a checkpoint
    proportion.py   which updates are out of proportion
    settings.py     addresses, time-outs, key files
    limited.py      log lines, so many in a minute
    gate.py         Gate, which bounds what peers can make a server keep
    framing.py      the frames of ZeroMQ's protocol, as far as the gate reads them
    sockets.py      SocketLink and Service, the connections over ZeroMQ

Only sockets.py needs pyzmq, and only it is not imported here. See docs/parameter_server.md.
"""

from dgc.parameter_server.composition import (
    Asynchronous,
    Changed,
    InverseStaleness,
    Scaling,
    Unscaled,
    dual_way,
)
from dgc.parameter_server.journal import Entry, Journal, Update
from dgc.parameter_server.protocol import Budget
from dgc.parameter_server.server import Observer, Server
from dgc.parameter_server.settings import Address, ServerError, ServerSettings, parse_address
from dgc.parameter_server.worker import Link, WorkerOptimizer

__all__ = [
    'Address',
    'Asynchronous',
    'Budget',
    'Changed',
    'Entry',
    'InverseStaleness',
    'Journal',
    'Link',
    'Observer',
    'Scaling',
    'Server',
    'ServerError',
    'ServerSettings',
    'Unscaled',
    'Update',
    'WorkerOptimizer',
    'dual_way',
    'parse_address',
]
