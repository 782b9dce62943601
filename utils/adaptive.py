"""Adam's decay rates where gradients are sparsified."""

from __future__ import annotations

from dgc.memory import FirstMoment
from utils.config import Config
from utils.training.averaging import EveryStep

LONG = 0.9999  # beta2 where an element arrives only every hundred or thousand steps


def betas(train: Config, beta1: float, beta2: float) -> tuple[float, float]:
    """Return the decay rates of the optimizer's moments (measured: docs/optimizers.md).

    Where gradients are sparsified, the second moment is a long average. The first one is the
    memory's where that is ``FirstMoment``, as configs/optim/ chooses: each rank computes it, and it
    is sparsified in place of the gradient. The optimizer's beta1 is 0 then.

    Args:
        train: ``configs.train``.
        beta1: Decay rate of the first moment, where the optimizer keeps it.
        beta2: Decay rate of the second moment, where gradients are not sparsified.
    """
    if not sparsifies(train):
        return beta1, beta2
    memory = train.compression.memory if 'memory' in train.compression else None
    in_memory = isinstance(memory, Config) and memory._func is FirstMoment
    return 0.0 if in_memory else beta1, LONG


def sparsifies(train: Config) -> bool:
    """Return whether gradients, and not the movement of local steps, are cut to a density."""
    return hasattr(train.compression, 'compress_ratio') and train.averaging._func is EveryStep
