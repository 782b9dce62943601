"""How the indices of a message are written: one class per coding, one entry in the table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dgc import ops
from dgc.codec import elias_fano, even
from dgc.codec.raw import typed
from dgc.ops import native
from dgc.sparse import Sparse


class IndexCoding(ABC):
    """Writes which elements of a tensor a message holds.

    Attributes:
        name: as in settings.
        code: as in the header of a message.
        chunk: elements of the chunks over which the indices must be spread evenly (``even.py``);
            None where they may lie anywhere.
    """

    name: str
    code: int
    chunk: int | None = None

    @abstractmethod
    def check(self, numel: int, k: int) -> None:
        """Raise ValueError where the coding cannot write ``k`` of ``numel`` elements."""

    @abstractmethod
    def capacity(self, numel: int, k: int) -> int:
        """Return the bytes of ``k`` indices of ``numel`` elements; does not decrease with ``k``."""

    @abstractmethod
    def write(self, sparse: Sparse) -> Tensor:
        """Return the section of a message: uint8 ``[capacity(numel, k)]``.

        Raises:
            ValueError: the message is dense where the coding lists indices, or sparse where it
                does not, or the indices do not ascend within 0 … ``numel - 1``.
        """

    @abstractmethod
    def read(self, section: Tensor, numel: int, count: int) -> Tensor | None:
        """Read int64 ``[count]`` from uint8 ``[capacity(numel, count)]``; None if dense.

        The result may share the section's storage. Of a damaged section it may be in any order,
        and outside 0 … ``numel - 1``: see ``are_in_order``.

        Raises:
            CodecError: the section does not hold ``count`` indices.
        """


class NoIndices(IndexCoding):
    """For dense messages: all elements, in order, so that no index is written."""

    name = 'none'
    code = 3

    def check(self, numel: int, k: int) -> None:
        """Raise ValueError unless ``k`` equals ``numel``."""
        if k != numel:
            raise ValueError(
                f"{k} of {numel} elements cannot be written with indices='none', which is for "
                "dense messages: choose indices='packed', 'int32' or 'int64'"
            )

    def capacity(self, numel: int, k: int) -> int:
        """Return 0."""
        return 0

    def write(self, sparse: Sparse) -> Tensor:
        """See :meth:`IndexCoding.write`."""
        if sparse.indices is not None:
            raise ValueError(
                f'a sparse message, of {len(sparse.values)} of {sparse.numel} elements, cannot be '
                "written with indices='none': choose indices='packed', 'int32' or 'int64'"
            )
        return torch.empty(0, dtype=torch.uint8, device=sparse.values.device)

    def read(self, section: Tensor, numel: int, count: int) -> None:
        """Return None; see :meth:`IndexCoding.read`."""


class Listed(IndexCoding):
    """Writes the indices of a sparse message, exactly.

    Attributes:
        limit: the largest numel whose elements it can number.
    """

    limit: int = torch.iinfo(torch.int64).max

    def check(self, numel: int, k: int) -> None:
        """Raise ValueError where ``numel`` exceeds ``limit``."""
        if numel > self.limit:
            raise ValueError(
                f'{numel} elements cannot be numbered with {self.name}: '
                "choose indices='packed' or 'int64'"
            )

    def write(self, sparse: Sparse) -> Tensor:
        """See :meth:`IndexCoding.write`."""
        if sparse.indices is None:
            raise ValueError(
                'a dense message has no indices to write; all-reduce it instead, or encode it '
                "with indices='none'"
            )
        if not in_order(sparse.indices, sparse.numel):
            raise ValueError(
                f'the indices of a message must ascend, each once, within its {sparse.numel} '
                'elements: sort them, and the values with them'
            )
        return self.encode(sparse.indices, sparse.numel)

    def read(self, section: Tensor, numel: int, count: int) -> Tensor:
        """See :meth:`IndexCoding.read`."""
        return self.decode(section, numel, count)

    @abstractmethod
    def encode(self, indices: Tensor, numel: int) -> Tensor:
        """Write int64 ``[k]``, ascending, as uint8 ``[capacity(numel, k)]``."""

    @abstractmethod
    def decode(self, section: Tensor, numel: int, count: int) -> Tensor:
        """Read int64 ``[count]`` from uint8 ``[capacity(numel, count)]``, in any order if damaged.

        Raises:
            CodecError: there are not that many.
        """


class FixedWidth(Listed):
    """Writes each index as an integer of ``dtype``, little-endian."""

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self.dtype = dtype
        self.limit = torch.iinfo(dtype).max

    def capacity(self, numel: int, k: int) -> int:
        """Return ``4k`` or ``8k``."""
        return k * self.dtype.itemsize

    def encode(self, indices: Tensor, numel: int) -> Tensor:
        """See :meth:`Listed.encode`."""
        return indices.to(self.dtype).contiguous().view(torch.uint8)

    def decode(self, section: Tensor, numel: int, count: int) -> Tensor:
        """See :meth:`Listed.decode`."""
        return typed(section, self.dtype).to(torch.int64)


class Packed(Listed):
    """Elias-Fano coding: about 12 bits per index at a density of 0.001."""

    name = 'packed'
    code = 2

    def capacity(self, numel: int, k: int) -> int:
        """Return the bytes of at most ``2 + log2(n / k)`` bits per index."""
        return elias_fano.length(numel, k)

    def encode(self, indices: Tensor, numel: int) -> Tensor:
        """See :meth:`Listed.encode`."""
        return elias_fano.encode(indices, numel)

    def decode(self, section: Tensor, numel: int, count: int) -> Tensor:
        """See :meth:`Listed.decode`."""
        return elias_fano.decode(section, numel, count)


class Even(Listed):
    """The same number of indices in each chunk of 4,096, in as few bits as their entropy: 7.375
    bits an index where 64 of each chunk are sent (``even.py``)."""

    name = 'even'
    code = 4
    chunk = even.CHUNK

    def capacity(self, numel: int, k: int) -> int:
        """Return the bytes of the numbers of the chunks' subsets."""
        return even.length(numel, k)

    def encode(self, indices: Tensor, numel: int) -> Tensor:
        """See :meth:`Listed.encode`.

        Raises:
            ValueError: the indices are not spread evenly over the chunks.
        """
        if not even.is_even(indices, numel):
            raise ValueError(
                f"indices='even' writes equally many elements of each chunk of {self.chunk}, and "
                f"these {len(indices)} of {numel} are not: choose indices='packed', or "
                'BlockTopK with ChunkLayout()'
            )
        return even.encode(indices, numel)

    def decode(self, section: Tensor, numel: int, count: int) -> Tensor:
        """See :meth:`Listed.decode`."""
        return even.decode(section, numel, count)


INDICES: dict[str, IndexCoding] = {
    coding.name: coding
    for coding in (
        FixedWidth('int64', 0, torch.int64),
        FixedWidth('int32', 1, torch.int32),
        Packed(),
        NoIndices(),
        Even(),
    )
}


def in_order(indices: Tensor, numel: int) -> bool:
    """Compute ``in_order_plainly``, or the same answer from C++ where it is compiled."""
    check = native.in_order if ops.is_native(indices.device) else in_order_plainly
    return check(indices, numel)


def in_order_plainly(indices: Tensor, numel: int) -> bool:
    """Return whether int64 ``[k]`` ascends, without repeating, within 0 … ``numel - 1``.

    Where there are several such vectors, ``[P, k]``: whether each does.
    """
    if not indices.numel():
        return True
    inside = (indices[..., 0] >= 0) & (indices[..., -1] < numel)
    return bool((inside & (indices[..., 1:] > indices[..., :-1]).all(dim=-1)).all())


def are_in_order(parts: Sequence[tuple[Tensor, int]]) -> bool:
    """Return whether ``in_order`` holds for the indices and the ``numel`` of each message.

    On a GPU, vectors of one length are looked at together: the host waits for the answer.
    """
    if len(parts) > 1 and parts[0][0].device.type != 'cpu':
        alike = {(indices.device, len(indices), numel) for indices, numel in parts}
        if len(alike) == 1:
            return in_order(torch.stack([indices for indices, _ in parts]), parts[0][1])
    return all(in_order(indices, numel) for indices, numel in parts)
