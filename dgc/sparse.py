"""Messages of one rank for one bucket, before a codec encodes them, and their arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# On a CPU, messages that hold at least 1 / CROWDED of a tensor's elements are combined in a table
# of all elements, and searched in one from 1 / MARKED on. At 25 % of 4.7 M elements this takes a
# fifth and an eighteenth of the time of sorting and searching.
CROWDED, MARKED = 12, 200


class Payload(Enum):
    """The form of a message: all elements in order, or some elements with their indices."""

    DENSE = 'dense'
    SPARSE = 'sparse'


class Sparse(NamedTuple):
    """``k`` elements of a flat tensor of ``n`` elements: sparse, or dense with all of them.

    Attributes:
        values: float32 ``[k]``.
        indices: int64 ``[k]``, unique and ascending; ``None`` for a dense message, where k = n.
        numel: ``n``.
    """

    values: Tensor
    indices: Tensor | None
    numel: int

    @property
    def is_dense(self) -> bool:
        """Whether the message holds all elements, in order, without indices."""
        return self.indices is None

    def add_to(self, flat: Tensor, alpha: float = 1.0) -> Tensor:
        """Compute ``flat += alpha * self`` in place for float32 ``flat[n]``; return ``flat``."""
        if self.indices is None:
            return flat.add_(self.values, alpha=alpha)
        return flat.index_add_(0, self.indices, self.values, alpha=alpha)

    def at(self, mask: Tensor) -> Sparse:
        """Return the elements of a sparse message at which bool ``mask[k]`` is true."""
        assert self.indices is not None
        places = mask.nonzero().view(-1)  # half of the time that a mask takes as an index
        return Sparse(self.values[places], self.indices[places], self.numel)

    def to_dense(self) -> Tensor:
        """Return a new float32 ``[n]`` that is zero where the message has no element."""
        return self.add_to(torch.zeros(self.numel, dtype=torch.float32, device=self.values.device))


def gather(flat: Tensor, indices: Tensor) -> Sparse:
    """Return the elements of ``flat[n]`` at int64 ``indices[k]``, as a sparse message."""
    return Sparse(flat[indices], indices, flat.numel())


def empty_message(numel: int, device: torch.device | str = 'cpu') -> Sparse:
    """Return a sparse message of a tensor ``[numel]`` without elements."""
    values = torch.empty(0, dtype=torch.float32, device=device)
    return Sparse(values, torch.empty(0, dtype=torch.int64, device=device), numel)


def difference(ours: Sparse, delivered: Sparse) -> Sparse:
    """Compute ``ours - delivered``: the quantization or truncation error of a message.

    Args:
        ours: What this rank selected.
        delivered: What the exchange delivered of it; dense if and only if ``ours`` is.

    Returns:
        The error, to be added to a buffer. It is not a message to send: where the two sparse
        messages differ in their indices, an index that is in both occurs twice.

    Raises:
        ValueError: If one is dense and the other sparse.
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
    """Return the sum of sparse messages of the same ``numel``, added in their order.

    Raises:
        ValueError: If one of them is dense.
    """
    if is_crowded(parts, parts[0].numel):
        total = torch.zeros(parts[0].numel, dtype=torch.float32)
        for part in parts:
            part.add_to(total)
        return gather(total, positions_of(parts, total.numel()))
    indices, place = torch.unique(torch.cat([indices_of(p) for p in parts]), return_inverse=True)
    values = torch.zeros(len(indices), dtype=torch.float32, device=indices.device)
    # One call per message: on a GPU, index_add_ adds values at the same index in any order, and
    # ranks would then differ in the last bits.
    for part, places in zip(parts, place.split([len(p.values) for p in parts]), strict=True):
        values.index_add_(0, places, part.values)
    return Sparse(values, indices, parts[0].numel)


def mean_of_contributors(parts: Sequence[Sparse]) -> Sparse:
    """Average each element over those sparse messages that have it (DeMo, arXiv 2411.19870).

    Raises:
        ValueError: If one of them is dense.
    """
    total = merge(parts)
    indices, counts = torch.unique(torch.cat([indices_of(p) for p in parts]), return_counts=True)
    return Sparse(total.values / counts, indices, total.numel)


def join(parts: Sequence[Sparse], numel: int) -> Sparse:
    """Combine sparse messages of a tensor ``[numel]`` that have no index in common into one.

    Raises:
        ValueError: If one of them is dense.
    """
    if is_crowded(parts, numel):
        total = torch.empty(numel, dtype=torch.float32)
        for part in parts:
            total.index_copy_(0, indices_of(part), part.values)
        return gather(total, positions_of(parts, numel))
    indices, order = torch.cat([indices_of(part) for part in parts]).sort()
    return Sparse(torch.cat([part.values for part in parts])[order], indices, numel)


def cut(sparse: Sparse, k: int) -> tuple[Sparse, Sparse]:
    """Split a sparse message into its ``k`` elements of largest magnitude, and the rest.

    Ties are resolved by index, lowest first, so that all ranks split the same message alike. A NaN
    counts as an infinity.

    Returns:
        The ``k`` largest elements, or all where there are fewer, and the others; both ascending.
    """
    if len(sparse.values) <= k:
        return sparse, sparse.at(torch.zeros_like(sparse.values, dtype=torch.bool))
    largest = among_largest(sparse.values.abs(), k)
    return sparse.at(largest), sparse.at(~largest)


def among_largest(magnitudes: Tensor, k: int) -> Tensor:
    """Return bool ``[n]``: the ``k`` largest of ``magnitudes[n]``, for 0 < k ≤ n.

    Ties are resolved by index, lowest first. A NaN counts as an infinity.
    """
    magnitudes = nan_as_infinity(magnitudes)
    least = kth_largest(magnitudes, k)
    largest = magnitudes >= least
    surplus = int(largest.sum()) - k
    if surplus:  # the last of those that equal the k-th
        equal = (magnitudes == least).nonzero().view(-1)
        largest[equal[-surplus:]] = False
    return largest


def kth_largest(magnitudes: Tensor, k: int) -> Tensor:
    """Return the ``k``-th largest of ``magnitudes[n]``, which has no NaN, for 0 < k ≤ n, as a
    scalar tensor."""
    if magnitudes.device.type != 'cpu':
        return torch.topk(magnitudes, k, sorted=False).values.min()
    # numpy takes a sixth to a half of the time of topk; it has no bfloat16.
    numbers = magnitudes if magnitudes.itemsize >= 4 else magnitudes.float()
    place = len(numbers) - k
    return torch.from_numpy(np.partition(numbers.numpy(), place))[place].to(magnitudes.dtype)


def nan_as_infinity(magnitudes: Tensor) -> Tensor:
    """Return ``magnitudes`` with infinities in place of NaNs."""
    return magnitudes.nan_to_num(nan=torch.inf, posinf=torch.inf)


def contains(ascending: Tensor, wanted: Tensor, numel: int) -> Tensor:
    """Return bool ``[m]``: whether each of int64 ``wanted[m]`` is in int64 ``ascending[k]``.

    All are positions in a tensor ``[numel]``.
    """
    if ascending.device.type == 'cpu' and MARKED * (len(ascending) + len(wanted)) >= numel:
        marks = torch.zeros(numel, dtype=torch.bool).index_fill_(0, ascending, True)
        return marks[wanted]
    if not len(ascending):
        return torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(ascending, wanted).clamp_(max=len(ascending) - 1)
    return ascending[place] == wanted


def is_crowded(parts: Sequence[Sparse], numel: int) -> bool:
    """Return whether sparse messages of a tensor ``[numel]`` are combined faster in a table of all
    its elements than by sorting their indices."""
    count = sum(len(part.values) for part in parts)
    return parts[0].values.device.type == 'cpu' and CROWDED * count >= numel


def positions_of(parts: Sequence[Sparse], numel: int) -> Tensor:
    """Return the indices of sparse messages of a tensor ``[numel]``, int64, each once and
    ascending."""
    marks = torch.zeros(numel, dtype=torch.bool)
    for part in parts:
        marks.index_fill_(0, indices_of(part), True)
    return marks.nonzero().view(-1)


def indices_of(sparse: Sparse) -> Tensor:
    """Return the indices of a sparse message, int64 ``[k]``. Raises ValueError for a dense one."""
    if sparse.indices is None:
        raise ValueError('a dense message has no indices; all-reduce it instead')
    return sparse.indices
