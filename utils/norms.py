"""The norm of a model's weights, by which a checkpoint of a run that has diverged is told."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor


def norm(model: Mapping[str, Any], names: Collection[str]) -> float:
    """The Euclidean norm of some tensors of a model's state together, computed in float64."""
    squares = 0.0
    for name in names:
        tensor: Tensor = model[name]
        part = tensor.abs() if tensor.is_complex() else tensor
        squares += float(part.double().square().sum())
    return math.sqrt(squares) if squares < math.inf else squares


def exploded(value: float, before: float | None, most_growth: float | None) -> bool:
    """Whether weights are not finite, or have grown beyond measure.

    Args:
        value: Their norm.
        before: That in the last good checkpoint; None where there was none.
        most_growth: The factor that is allowed between two checkpoints; None for any.
    """
    if not math.isfinite(value):
        return True
    return bool(before and most_growth is not None and value > most_growth * before)
