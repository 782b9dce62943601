"""Asynchronous training with a parameter server, sparsified in both directions (DGS).

A server keeps the model. Workers push updates and pull what has changed, each at its own pace:

    server.py       what is answered to whom; no socket, no clock
    model.py        θ, and the records of the workers' parameters
    service.py      its socket
    worker.py       an optimizer whose step pushes and pulls
    link.py         its connection, which outlives the server's
    composition.py  the parts: memory, compressors up and down, codec, scaling
    protocol.py     the messages; sections.py: what they carry

The library needs pyzmq. ``python -m dgc.parameter_server`` starts train.py's server by hand.
See docs/parameter_server.md.
"""

from dgc.parameter_server.composition import Asynchronous, Changed, dual_way
from dgc.parameter_server.errors import ServerError
from dgc.parameter_server.keys import Key, derive
from dgc.parameter_server.link import Link, SocketLink
from dgc.parameter_server.server import Course, Observer, Server, Update
from dgc.parameter_server.service import Service
from dgc.parameter_server.settings import ServerSettings
from dgc.parameter_server.sockets import Address, parse_address
from dgc.parameter_server.staleness import InverseStaleness, Scaling, Unscaled
from dgc.parameter_server.worker import WorkerOptimizer

__all__ = [
    'Address',
    'Asynchronous',
    'Changed',
    'Course',
    'InverseStaleness',
    'Key',
    'Link',
    'Observer',
    'Scaling',
    'Server',
    'ServerError',
    'ServerSettings',
    'Service',
    'SocketLink',
    'Unscaled',
    'Update',
    'WorkerOptimizer',
    'derive',
    'dual_way',
    'parse_address',
]
