"""How the indices of a message are written: one class a coding, one entry in the table."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dgc import ops
from dgc.codec import elias_fano
from dgc.codec.raw import typed
from dgc.ops import native


class IndexCoding(ABC):
    """Writes ascending indices, exactly.

    name: as in settings; code: as in the header.
    limit: the largest numel whose elements it can number.
    """

    name: str
    code: int
    limit: int = torch.iinfo(torch.int64).max

    @abstractmethod
    def capacity(self, numel: int, k: int) -> int:
        """Bytes of ``k`` indices of ``numel`` elements; fewer indices never take more."""

    @abstractmethod
    def encode(self, indices: Tensor, numel: int) -> Tensor:
        """int64 ``[k]``, ascending, as uint8 ``[capacity(numel, k)]``."""

    @abstractmethod
    def decode(self, section: Tensor, numel: int, count: int) -> Tensor:
        """int64 ``[count]`` out of uint8 ``[capacity(numel, count)]``: any, where it is damaged.

        Raises CodecError where there are not that many. May share the section's storage.
        """


class FixedWidth(IndexCoding):
    """Each index as an integer of ``dtype``, little-endian."""

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self.dtype = dtype
        self.limit = torch.iinfo(dtype).max

    def capacity(self, numel: int, k: int) -> int:
        """``k`` times 4 or 8."""
        return k * self.dtype.itemsize

    def encode(self, indices: Tensor, numel: int) -> Tensor:
        """See :meth:`IndexCoding.encode`."""
        return indices.to(self.dtype).contiguous().view(torch.uint8)

    def decode(self, section: Tensor, numel: int, count: int) -> Tensor:
        """See :meth:`IndexCoding.decode`."""
        return typed(section, self.dtype).to(torch.int64)


class Packed(IndexCoding):
    """Elias-Fano: about 12 bits an index at one in a thousand."""

    name = 'packed'
    code = 2

    def capacity(self, numel: int, k: int) -> int:
        """At most ``2 + log2(n / k)`` bits an index, rounded up, and a byte."""
        return elias_fano.length(numel, k)

    def encode(self, indices: Tensor, numel: int) -> Tensor:
        """See :meth:`IndexCoding.encode`."""
        return elias_fano.encode(indices, numel)

    def decode(self, section: Tensor, numel: int, count: int) -> Tensor:
        """See :meth:`IndexCoding.decode`."""
        return elias_fano.decode(section, numel, count)


INDICES: dict[str, IndexCoding] = {
    coding.name: coding
    for coding in (
        FixedWidth('int64', 0, torch.int64),
        FixedWidth('int32', 1, torch.int32),
        Packed(),
    )
}


def in_order(indices: Tensor, numel: int) -> bool:
    """``in_order_plainly``, or its twin in C++ where there is one."""
    check = native.in_order if ops.is_native(indices.device) else in_order_plainly
    return check(indices, numel)


def in_order_plainly(indices: Tensor, numel: int) -> bool:
    """Whether int64 ``[k]`` ascends, without repeating, within 0 … ``numel - 1``."""
    if not len(indices):
        return True
    inside = (indices[0] >= 0) & (indices[-1] < numel)
    return bool(inside & (indices[1:] > indices[:-1]).all())
