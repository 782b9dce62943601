"""The message of one worker for one bucket, before it is written on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor


class Payload(Enum):
    """What a message carries: all elements in order (no indices), or some with their indices."""

    DENSE = 'dense'
    SPARSE = 'sparse'


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

    def at(self, mask: Tensor) -> Sparse:
        """Those elements of a sparse message for which bool ``mask[k]`` is true."""
        assert self.indices is not None
        return Sparse(self.values[mask], self.indices[mask], self.numel)

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


def merge(parts: Sequence[Sparse]) -> Sparse:
    """The sum of sparse messages of the same ``numel``, added in their order."""
    indices, place = torch.unique(torch.cat([indices_of(p) for p in parts]), return_inverse=True)
    values = torch.zeros(len(indices), device=indices.device)
    # One after another: a GPU adds what one call has at the same index in any order.
    for part, places in zip(parts, place.split([len(p.values) for p in parts]), strict=True):
        values.index_add_(0, places, part.values)
    return Sparse(values, indices, parts[0].numel)


def mean_of_contributors(parts: Sequence[Sparse]) -> Sparse:
    """Average each element over those sparse messages that have it (DeMo, arXiv 2411.19870)."""
    total = merge(parts)
    indices, counts = torch.unique(torch.cat([indices_of(p) for p in parts]), return_counts=True)
    return Sparse(total.values / counts, indices, total.numel)


def join(parts: Sequence[Sparse], numel: int) -> Sparse:
    """One message of sparse messages that have no index in common."""
    indices, order = torch.cat([indices_of(part) for part in parts]).sort()
    return Sparse(torch.cat([part.values for part in parts])[order], indices, numel)


def cut(sparse: Sparse, k: int) -> tuple[Sparse, Sparse]:
    """The ``k`` largest elements of a sparse message, and the rest.

    Of equal ones the first are kept, so that all workers cut the same message alike. A NaN is as
    large as an infinity.
    """
    if len(sparse.values) <= k:
        return sparse, sparse.at(torch.zeros_like(sparse.values, dtype=torch.bool))
    magnitudes = sparse.values.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    least = torch.topk(magnitudes, k, sorted=False).values.min()
    larger, equal = magnitudes > least, magnitudes == least
    kept = larger | (equal & (equal.cumsum(0) <= k - larger.sum()))
    return sparse.at(kept), sparse.at(~kept)


def contains(ascending: Tensor, wanted: Tensor) -> Tensor:
    """Which of int64 ``wanted[m]`` are among int64 ``ascending[k]``: bool ``[m]``."""
    if not len(ascending):
        return torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(ascending, wanted).clamp_(max=len(ascending) - 1)
    return ascending[place] == wanted


def indices_of(sparse: Sparse) -> Tensor:
    """Its indices. Raises ValueError for a dense message."""
    if sparse.indices is None:
        raise ValueError('a dense message has no indices; all-reduce it instead')
    return sparse.indices
