"""Adam's decay rates where gradients are sparsified."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from dgc.memory import FirstMoment
from dgc.schedule import density_of, lasting_beta2
from utils.config import Config
from utils.training.averaging import EveryStep

log = logging.getLogger(__name__)


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
    memory = train.compression.memory if 'memory' in train.compression else None
    if isinstance(memory, Config) and memory._func is FirstMoment:
        beta1 = 0.0
    density = density_of_gradients(train)
    return beta1, beta2 if density is None else lasting_beta2(density)


def density_of_gradients(train: Config) -> float | None:
    """Return the part of the gradients that is sent; None where it is all of them.

    With local steps it is all: their movement is sparsified, and not a gradient.
    """
    if not hasattr(train.compression, 'compress_ratio') or train.averaging._func is not EveryStep:
        return None
    ratio = train.compression.compress_ratio
    is_valid = isinstance(ratio, int | float) and ratio > 0  # others are refused when it is built
    return density_of(ratio) if is_valid else None


def warn_of_other_betas(
    saved: Iterable[Mapping[str, Any]], configured: Iterable[Mapping[str, Any]]
) -> None:
    """Warn where a checkpoint was trained with other decay rates than those of now.

    The number of steps corrects the bias of moments as if they had always had the present rates:
    with a beta2 that is nearer to 1, steps are shorter until the new average has as many steps.

    Args:
        saved, configured: The optimizer's groups of parameters, as the checkpoint has them and as
            this run is configured.
    """
    for before, now in zip(saved, configured, strict=False):
        one, other = before.get('betas'), now.get('betas')
        if one is not None and other is not None and tuple(one) != tuple(other):
            log.warning(
                "warning: configs.train.optimizer.betas is %s, and the checkpoint was trained with "
                "%s: to go on as before, give --configs.train.optimizer.betas '%s'",
                tuple(other), tuple(one), tuple(one),
            )  # fmt: skip
            return
