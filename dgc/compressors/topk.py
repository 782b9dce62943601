"""The largest elements, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.corrected import Corrected
from dgc.sparse import Sparse, gather


class TopK(Compressor):
    """The ``k`` elements of largest magnitude. Exact, and on a CPU many times slower than a
    threshold: the plain reference for the others."""

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return exactly ``keep(n, density)`` elements."""
        values = corrected.materialize()
        return gather(values, largest(values.abs(), keep(len(values), density)))


def largest(importance: Tensor, k: int) -> Tensor:
    """Return the positions of the ``k`` largest of ``importance[n]``, int64 ``[k]``, ascending."""
    return torch.topk(importance, k, sorted=False).indices.sort().values


def kth_largest(importance: Tensor, k: int) -> float:
    """Return the smallest of the ``k`` largest of ``importance[n]``."""
    return least(torch.topk(importance, k, sorted=False).values)


def least(importance: Tensor) -> float:
    """Return the minimum of ``importance[k]``, a NaN counting as infinity; 0 where it is empty."""
    if not len(importance):
        return 0.0
    return float(importance.nan_to_num(nan=torch.inf, posinf=torch.inf).min())
