"""The largest elements, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.corrected import Corrected
from dgc.sparse import Sparse, among_largest, gather, nan_as_infinity


class TopK(Compressor):
    """The ``k`` elements of largest magnitude. Exact, and on a CPU many times slower than a
    threshold: the plain reference for the others."""

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return exactly ``keep(n, density)`` elements."""
        values = corrected.materialize()
        return gather(values, largest(values.abs(), keep(len(values), density)))


def largest(importance: Tensor, k: int) -> Tensor:
    """Return the positions of the ``k`` largest of ``importance[n]``, int64 ``[k]``, ascending.

    Of equal elements the first ones are chosen, as CUDA's topk does.
    """
    if importance.device.type != 'cpu':
        return torch.topk(importance, k, sorted=False).indices.sort().values
    return among_largest(importance, k).nonzero().view(-1) if k else torch.arange(0)


def least(importance: Tensor) -> float:
    """Return the minimum of ``importance[k]``, a NaN counting as infinity; 0 where it is empty."""
    return float(nan_as_infinity(importance).min()) if len(importance) else 0.0
