"""The message of one worker for one bucket, before it is written on the wire."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sparse(NamedTuple):
    """``k`` elements of a flat tensor of ``numel`` elements.

    values: float32 ``[k]``.
    indices: int64 ``[k]``, unique and ascending; ``None`` when every element is there.
    numel: ``n``, the length of the tensor that they were taken from.
    """

    values: Tensor
    indices: Tensor | None
    numel: int

    @property
    def is_dense(self) -> bool:
        """Whether every element is there, so that no index travels."""
        return self.indices is None

    def add_to(self, flat: Tensor, alpha: float = 1.0) -> Tensor:
        """``flat += alpha * self`` in place, for a float32 ``flat[n]``; returns ``flat``."""
        if self.indices is None:
            return flat.add_(self.values, alpha=alpha)
        return flat.index_add_(0, self.indices, self.values, alpha=alpha)

    def to_dense(self) -> Tensor:
        """A new float32 ``[n]`` with zeros where nothing was kept."""
        return self.add_to(torch.zeros(self.numel, device=self.values.device))


def gather(flat: Tensor, indices: Tensor) -> Sparse:
    """The elements of ``flat[n]`` at ``indices[k]``, as a message."""
    return Sparse(flat[indices], indices, flat.numel())


def nothing(numel: int, device: torch.device | str = 'cpu') -> Sparse:
    """A legal message that carries no element."""
    return Sparse(
        torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device), numel
    )


def difference(ours: Sparse, delivered: Sparse) -> Sparse:
    """``ours - delivered``: what a codec or a cut left out of a message.

    ``delivered`` may hold other elements. Then an index may appear twice in the result, once with
    each sign, so it is something to add to a buffer, not a message to send.
    """
    if ours.indices is None or delivered.indices is None:
        if ours.indices is not delivered.indices:
            raise ValueError('a dense message and a sparse one cannot be subtracted')
        return Sparse(ours.values - delivered.values, None, ours.numel)
    if torch.equal(ours.indices, delivered.indices):
        return Sparse(ours.values - delivered.values, ours.indices, ours.numel)
    return Sparse(
        torch.cat([ours.values, -delivered.values]),
        torch.cat([ours.indices, delivered.indices]),
        ours.numel,
    )
