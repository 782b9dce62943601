"""Asynchronous training with a parameter server, sparsified in both directions (DGS).

A server holds the model. Workers push updates and pull what has changed, each at its own pace:

    composition.py  the parts: memory, compressors up and down, codec, scaling of stale updates
    worker.py       WorkerOptimizer, whose step pushes an update and pulls an answer
    server.py       Server, the state machine that answers; without sockets and clocks
    model.py        θ and the records θ_w, in flat tensors
    protocol.py     the messages, byte by byte
    settings.py     addresses, time-outs, key files
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
from dgc.parameter_server.protocol import Budget
from dgc.parameter_server.server import Observer, Server, Update
from dgc.parameter_server.settings import Address, ServerError, ServerSettings, parse_address
from dgc.parameter_server.worker import Link, WorkerOptimizer

__all__ = [
    'Address',
    'Asynchronous',
    'Budget',
    'Changed',
    'InverseStaleness',
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
