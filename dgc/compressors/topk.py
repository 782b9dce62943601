"""The largest elements, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.sparse import Sparse, gather


class TopK(Compressor):
    """The ``k`` elements of largest magnitude. Exact, and on a CPU many times slower than a
    threshold: the plain reference for the others."""

    def compress(self, corrected: Tensor, ratio: float) -> Sparse:
        """Exactly ``keep(n, ratio)`` elements."""
        k = keep(corrected.numel(), ratio)
        return gather(corrected, largest(corrected.abs(), k))


def largest(importance: Tensor, k: int) -> Tensor:
    """Positions of the ``k`` largest of ``importance[n]``, int64 ``[k]``, ascending."""
    return torch.topk(importance, k, sorted=False).indices.sort().values


def kth_largest(importance: Tensor, k: int) -> float:
    """The least of the ``k`` largest of ``importance[n]``."""
    return least(torch.topk(importance, k, sorted=False).values)


def least(importance: Tensor) -> float:
    """The least of ``importance[k]``, where a NaN is as large as an infinity; 0 of nothing."""
    if not len(importance):
        return 0.0
    return float(importance.nan_to_num(nan=torch.inf, posinf=torch.inf).min())
