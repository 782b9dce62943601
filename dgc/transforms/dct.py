"""The blockwise discrete cosine transform of DeMo (Peng et al., arXiv 2411.19870)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from dgc import ops
from dgc.bucket_spec import BucketSpec
from dgc.ops import native
from dgc.transforms.base import Transform
from dgc.transforms.blocks import BlockLayout, matrix_shape

VALUE_BITS = 22  # of a value, in units that its tile's largest decides
COSINE_BITS = 24  # of a cosine, which is at most 1
MOST = 128  # the longest side of a block: sums of so many products are at most 2^53 units
PART = 1 << 17  # elements that are transformed at a time, which stay in a cache


class BlockDCT(Transform):
    """Orthonormal DCT-II of every block: two-dimensional for tiles, one-dimensional for chunks.

    Coefficients of a block are neighbours in the transformed tensor, so a compressor with the same
    layout selects per block. Orthonormal, so removing a coefficient from a residual is the same as
    subtracting its inverse transform, exactly.

    All ranks must compute the same signs from the same coefficients, and a product of float32
    matrices rounds as its library divides it among threads. So both factors are rounded to whole
    multiples of a unit, and float64 holds each sum of their products exactly, in whatever order
    it is computed: the result has the same bits for any number of threads, on any processor and on
    a GPU. It is off by about 2^-21 of the largest value of its tile. On the CPU the C++ library
    computes the same sums in fewer steps (``dgc/ops/csrc/cosine_loop.h``).

    Args:
        layout: Divides parameters into blocks, of sides up to 128.
        sign: Whether ``inverse`` returns the sign of the result, as DeMo's update does; the sign of
            0 is 0.

    Raises:
        ValueError: For a layout of longer sides, whose sums float64 would not hold.
    """

    def __init__(self, layout: BlockLayout | None = None, sign: bool = False) -> None:
        self.layout = layout or BlockLayout()
        self.sign = sign
        if self.layout.side > MOST:
            raise ValueError(
                f'a cosine transform has blocks of sides up to {MOST}, got {self.layout.side}'
            )

    @property
    def basis(self) -> str:
        """Coefficients differ by the sides of blocks, and not by ``sign``."""
        return f'BlockDCT(side={self.layout.side})'

    def forward(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return the coefficients, float32 ``[n]``, block after block."""
        transformed = torch.empty(spec.numel, dtype=torch.float32, device=flat.device)
        for place, height, width, across in self._tilings(spec):
            left, right = cosines(height, flat.device), cosines(width, flat.device)
            if ops.is_native(flat.device):
                native.cosine(flat[place], transformed[place], across, left, right, inverse=False)
                continue
            tiles = flat[place].view(-1, height, across, width)
            blocks = transformed[place].view(-1, across, height, width).transpose(1, 2)
            for source, target in zip(parts(tiles), parts(blocks), strict=True):
                target.copy_(exact_product(source.float(), left, right))
        return transformed

    def inverse(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return the values of the coefficients ``flat[n]``, or their signs."""
        values = torch.empty(spec.numel, dtype=torch.float32, device=flat.device)
        for place, height, width, across in self._tilings(spec):
            left, right = cosines(height, flat.device), cosines(width, flat.device)
            if ops.is_native(flat.device):
                native.cosine(flat[place], values[place], across, left, right, inverse=True)
                continue
            blocks = flat[place].view(-1, across, height, width).transpose(1, 2)
            tiles = values[place].view(-1, height, across, width)
            for source, target in zip(parts(blocks), parts(tiles), strict=True):
                target.copy_(exact_product(source.float(), left.T, right.T))
        return values.sign_() if self.sign else values

    def _tilings(self, spec: BucketSpec) -> Iterator[tuple[slice, int, int, int]]:
        """Yield where each parameter with elements lies, the sides of its tiles, and how many of
        them lie next to each other in a row."""
        for member in spec.members:
            if member.numel:
                height, width = self.layout.tile(member.shape)
                across = matrix_shape(member.shape)[1] // width
                yield slice(member.offset, member.offset + member.numel), height, width, across


def parts(tiles: Tensor) -> tuple[Tensor, ...]:
    """Split ``[b, h, c, w]`` along b into parts of about PART elements."""
    return tiles.split(max(PART // math.prod(tiles.shape[1:]), 1))


def exact_product(tiles: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ tile @ right.T`` of every tile, float64, from sums that float64 holds.

    Args:
        tiles: Float32 ``[b, h, c, w]``: tile (i, j) is ``tiles[i, :, j]``.
        left, right: ``[h, h]`` and ``[w, w]``, float64, in whole multiples of 2^-COSINE_BITS.
    """
    count, height, across, width = tiles.shape
    # 1.5·2^23 units: float32 rounds a sum with it to whole units, and taking it away is exact.
    # Values are below 2^22 units, so sums below 2^(22 + 24 + 4) of their products' units.
    largest = tiles.abs().amax((1, 3), keepdim=True)
    exponents = torch.frexp(largest).exponent.clamp_(min=-100)
    shift = 1.5 * torch.exp2((exponents + (23 - VALUE_BITS)).float())
    wide = (tiles + shift).sub_(shift).reshape(-1, width).double() @ right.T
    if height == 1:
        return wide.view(tiles.shape)
    # The same in float64, to units twice as large: the next sums are below 2^(25 + 24 + 4).
    wide, shift = wide.view(tiles.shape), shift.double() * 2.0 ** (52 - 23 + 1)
    wide.add_(shift).sub_(shift)
    return (left @ wide.view(count, height, across * width)).view(tiles.shape)


@cache
def cosines(side: int, device: torch.device) -> Tensor:
    """Return the orthonormal DCT-II matrix, float64 ``[side, side]``, as whole numbers in units of
    2^-COSINE_BITS: row k is frequency k."""
    frequency = torch.arange(side, dtype=torch.float64)[:, None]
    place = torch.arange(side, dtype=torch.float64)[None, :]
    matrix = torch.cos(math.pi * (place + 0.5) * frequency / side) * math.sqrt(2 / side)
    matrix[0] /= math.sqrt(2)
    return matrix.mul_(2.0**COSINE_BITS).round_().mul_(2.0**-COSINE_BITS).to(device)
