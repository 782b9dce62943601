"""The order of elements in which tiles of matrices follow each other (SparseLoCo)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.transforms.base import Transform
from dgc.transforms.blocks import matrix_shape


class Tiles(Transform):
    """Puts the elements of each tile of ``side`` by ``side`` next to each other.

    A parameter of two or more dimensions is a matrix, its first dimension by all others. Its tiles
    follow each other row after row, and so do the elements of a tile; those at its lower and right
    edges are smaller where a side is no multiple. So chunks of ``side²`` elements of a matrix whose
    sides are multiples are its tiles. Vectors stay as they are. It is a permutation, thus exact.

    Args:
        side: Rows and columns of a tile.

    Raises:
        ValueError: For a side below 1.
    """

    def __init__(self, side: int = 64) -> None:
        if side < 1:
            raise ValueError(f'side must be at least 1, got {side}')
        self.side = side

    @property
    def basis(self) -> str:
        """The order of elements differs by the sides of tiles."""
        return f'Tiles(side={self.side})'

    def forward(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return the elements in the order of the tiles, float32 ``[n]``."""
        moved = torch.empty(spec.numel, dtype=torch.float32, device=flat.device)
        for tiles, place in self._tiles(flat, spec):
            moved[place].view(tiles.shape).copy_(tiles)
        return moved

    def inverse(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return the elements in the order of the parameters, float32 ``[n]``."""
        values = torch.empty(spec.numel, dtype=torch.float32, device=flat.device)
        for tiles, place in self._tiles(values, spec):
            tiles.copy_(flat[place].view(tiles.shape))
        return values

    def _tiles(self, flat: Tensor, spec: BucketSpec) -> Iterator[tuple[Tensor, slice]]:
        """Yield views ``[tiles, rows, columns]`` of ``flat[n]``, in order, and their place in it
        when tiles follow each other."""
        for member in spec.members:
            rows, columns = matrix_shape(member.shape)
            matrix = flat[member.offset : member.offset + member.numel].view(rows, columns)
            whole, begin = columns - columns % self.side, member.offset
            for strip in matrix.split(self.side):
                complete, edge = strip[:, :whole], strip[:, whole:]
                parts = complete.unflatten(1, (-1, self.side)).transpose(0, 1), edge.unsqueeze(0)
                for tiles in parts:
                    yield tiles, slice(begin, begin + tiles.numel())
                    begin += tiles.numel()
