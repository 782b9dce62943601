"""Asynchronous training with a parameter server: DGS, and asynchronous DiLoCo.

A server holds the model. Workers push updates and pull what has changed, each at its own pace:

    composition.py  the parts: memory, compressors up and down, codec, scaling of stale updates
    worker.py       WorkerOptimizer, whose step pushes an update and pulls an answer
    server.py       Server, the state machine that answers; without sockets and clocks
    rounds.py       Rounds, the settings of asynchronous DiLoCo; what is pushed until an outer step
    asynchronous_steps.py  AsynchronousSteps, whose steps are local, and which pushes their movement
    outer_server.py OuterServer, which takes outer steps on the movement of a quorum
    model.py        θ and the records θ_w, in flat tensors
    protocol.py     the messages, byte by byte
    journal.py      the file of updates since a checkpoint
    proportion.py   which updates are out of proportion
    settings.py     addresses, time-outs, key files
    limited.py      log lines, so many in a minute
    gate.py         Gate, which bounds what peers can make a server keep
    framing.py      the frames of ZeroMQ's protocol, as far as the gate reads them
    direct.py       DirectLink, to a server in the same process
    sockets.py      SocketLink and Service, the connections over ZeroMQ

Only sockets.py needs pyzmq, and only it is not imported here. See docs/parameter_server.md.
"""

from dgc.parameter_server.asynchronous_steps import AsynchronousSteps
from dgc.parameter_server.composition import (
    Asynchronous,
    Changed,
    InverseRounds,
    InverseStaleness,
    Scaling,
    Unscaled,
    dual_way,
)
from dgc.parameter_server.direct import DirectLink
from dgc.parameter_server.journal import Entry, Journal, Update
from dgc.parameter_server.outer_server import OuterServer
from dgc.parameter_server.protocol import Budget
from dgc.parameter_server.rounds import Rounds
from dgc.parameter_server.server import Observer, Server
from dgc.parameter_server.settings import Address, ServerError, ServerSettings, parse_address
from dgc.parameter_server.worker import Link, WorkerOptimizer

__all__ = [
    'Address',
    'Asynchronous',
    'AsynchronousSteps',
    'Budget',
    'Changed',
    'DirectLink',
    'Entry',
    'InverseRounds',
    'InverseStaleness',
    'Journal',
    'Link',
    'Observer',
    'OuterServer',
    'Rounds',
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
