"""Distributed training over slow networks with compressed gradients and error feedback.

The package stands on its own. Wrap an optimizer of your own loop in a DistributedOptimizer:

    import dgc

    engine = dgc.create(device=device)
    optimizer = dgc.DGCSGD(model.parameters(), lr=0.1 * engine.size, momentum=0.9)
    optimizer = dgc.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        dgc.deep_gradient_compression(compress_ratio=0.001, fp16_values=True, int32_indices=True),
        engine,
    )

docs/architecture.md describes the path of a gradient; its parts are the modules of this package.
"""

from dgc import hooks
from dgc.algorithms import ALGORITHMS
from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.algorithms.dense import dense
from dgc.composition import Composition
from dgc.engines import Engine, EngineError, create, simulate
from dgc.handshake import HandshakeError, average_tensors, broadcast_tensors
from dgc.local_steps import LocalSteps
from dgc.nonfinite import NonFiniteGradientError
from dgc.optim import DGCSGD
from dgc.optimizer import DistributedOptimizer
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule
from dgc.selection import SelectionErrors
from dgc.sparse import Sparse
from dgc.streaming import StreamingSteps
from dgc.trace import Trace
from dgc.zero_one import SyncSchedule, ZeroOneSteps

__version__ = '0.1.0'

__all__ = [
    'ALGORITHMS',
    'DGCSGD',
    'Composition',
    'DensitySchedule',
    'DistributedOptimizer',
    'Engine',
    'EngineError',
    'HandshakeError',
    'LayerRules',
    'LocalSteps',
    'NonFiniteGradientError',
    'SelectionErrors',
    'Sparse',
    'StreamingSteps',
    'SyncSchedule',
    'Trace',
    'ZeroOneSteps',
    'average_tensors',
    'broadcast_tensors',
    'create',
    'deep_gradient_compression',
    'dense',
    'hooks',
    'simulate',
]
