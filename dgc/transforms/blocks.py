"""Blocks of a bucket's flat tensor: tiles of matrices and chunks of vectors, one after another."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dgc.bucket_spec import BucketSpec, MemberSpec


class Run(NamedTuple):
    """Blocks of one size that follow each other.

    Attributes:
        offset: Index of the first element in the flat tensor.
        number: How many blocks there are.
        size: Elements of each.
    """

    offset: int
    number: int
    size: int

    @property
    def numel(self) -> int:
        """The number of elements of all blocks."""
        return self.number * self.size


class Layout(ABC):
    """Divides a bucket's flat tensor into blocks."""

    @abstractmethod
    def runs(self, spec: BucketSpec) -> list[Run]:
        """Return the blocks, in the order of the flat tensor."""

    @abstractmethod
    def share(self, k: int, run: Run) -> int:
        """Return how many elements of each block of a run are selected, of ``k`` of a full one."""


class ChunkLayout(Layout):
    """Chunks of the same size of the whole bucket, wherever its parameters begin.

    Of the last chunk, which may be shorter, a proportional part is selected, rounded down, so that
    all that is selected is spread evenly (``dgc/codec/even.py``). That may be none: see
    ``BlockTopK.check_buckets``.

    Args:
        size: Elements of a chunk.

    Raises:
        ValueError: For a size below 1.
    """

    def __init__(self, size: int = 4096) -> None:
        if size < 1:
            raise ValueError(f'size must be at least 1 element of a chunk, got {size}')
        self.size = size

    def check(self, k: int) -> None:
        """Raise ValueError where a chunk has no ``k`` elements."""
        if k > self.size:
            raise ValueError(f'{k} elements cannot be selected of a chunk of {self.size}')

    def runs(self, spec: BucketSpec) -> list[Run]:
        """Return the complete chunks, and the rest."""
        whole, rest = divmod(spec.numel, self.size)
        found = [Run(0, whole, self.size)] if whole else []
        return [*found, Run(whole * self.size, 1, rest)] if rest else found

    def share(self, k: int, run: Run) -> int:
        """Return ``⌊k·s/size⌋`` for chunks of s elements; at least 1 where there is only one."""
        return max(k * run.size // self.size, int(run.offset == 0))


class BlockLayout(Layout):
    """Divides each parameter into blocks of equal shape, as DeMo does (arXiv 2411.19870).

    A parameter of two or more dimensions is a matrix (its first dimension by all others), cut into
    tiles whose sides are the largest divisors, up to ``side``, of the matrix's. A vector is cut
    into chunks of the largest such divisor of its length. ``pack`` moves the elements of a block
    next to each other.

    Args:
        side: The largest side of a tile.

    Raises:
        ValueError: For a side below 1.
    """

    def __init__(self, side: int = 64) -> None:
        if side < 1:
            raise ValueError(f'side must be at least 1, got {side}')
        self.side = side

    def tile(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of the tiles of a parameter; 1 row for a vector."""
        rows, columns = matrix_shape(shape)
        if len(shape) < 2:
            return 1, largest_divisor(columns, self.side)
        return largest_divisor(rows, self.side), largest_divisor(columns, self.side)

    def runs(self, spec: BucketSpec) -> list[Run]:
        """Return one run of blocks for each parameter, in the order of the flat tensor."""
        found = []
        for member in spec.members:
            size = math.prod(self.tile(member.shape))
            found.append(Run(member.offset, member.numel // size, size))
        return found

    def share(self, k: int, run: Run) -> int:
        """Return how many elements of each block of a run are selected, of ``k`` of a full one."""
        return min(k, run.size)

    def pack(self, flat: Tensor, member: MemberSpec) -> Tensor:
        """Return a parameter's elements as ``[blocks, rows, columns]``, from a flat ``[n]``."""
        rows, columns = matrix_shape(member.shape)
        height, width = self.tile(member.shape)
        values = flat[member.offset : member.offset + member.numel]
        tiles = values.view(rows // height, height, columns // width, width)
        return tiles.transpose(1, 2).reshape(-1, height, width)

    def unpack(self, blocks: Tensor, member: MemberSpec) -> Tensor:
        """Invert ``pack``: return a parameter's elements ``[numel]`` in their logical order."""
        rows, columns = matrix_shape(member.shape)
        height, width = self.tile(member.shape)
        tiles = blocks.view(rows // height, columns // width, height, width)
        return tiles.transpose(1, 2).reshape(-1)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return a parameter's shape as a matrix: the first dimension by all others.

    A vector is one row; so is a scalar.
    """
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])


def largest_divisor(length: int, limit: int) -> int:
    """Return the largest divisor of ``length`` that is at most ``limit``; 1 for a length of 0."""
    return next((size for size in range(min(length, limit), 0, -1) if length % size == 0), 1)
