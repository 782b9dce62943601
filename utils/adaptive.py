"""Adam's decay rates where gradients are sparsified."""

from __future__ import annotations

from dgc.memory import FirstMoment
from utils.config import Config
from utils.training.averaging import EveryStep

LONG = 0.9999  # beta2 where an element arrives only every ten to a thousand steps


def betas(train: Config, beta1: float, beta2: float) -> tuple[float, float]:
    """Return the decay rates of the optimizer's moments.

    Where gradients are sparsified, the second moment outlasts the steps between two arrivals of an
    element (measured: docs/optimizers.md). Where the memory has the first moment, the optimizer has
    none.

    Args:
        train: ``configs.train``.
        beta1: Decay rate of the first moment.
        beta2: Decay rate of the second moment where gradients are not sparsified.
    """
    if not sparsifies(train):
        return beta1, beta2
    memory = train.compression.memory if 'memory' in train.compression else None
    in_memory = isinstance(memory, Config) and memory._func is FirstMoment
    return 0.0 if in_memory else beta1, LONG


def sparsifies(train: Config) -> bool:
    """Return whether gradients, and not the movement of local steps, are cut to a density."""
    return hasattr(train.compression, 'compress_ratio') and train.averaging._func is EveryStep
