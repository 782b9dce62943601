"""The blockwise discrete cosine transform of DeMo (Peng et al., arXiv 2411.19870)."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.transforms.base import Transform
from dgc.transforms.blocks import BlockLayout


class BlockDCT(Transform):
    """Orthonormal DCT-II of every block: two-dimensional for tiles, one-dimensional for chunks.

    Coefficients of a block are neighbours in the transformed tensor, so a compressor with the same
    layout selects per block. Orthonormal, so removing a coefficient from a residual is the same as
    subtracting its inverse transform, exactly.

    Args:
        layout: Divides parameters into blocks.
        sign: Whether ``inverse`` returns the sign of the result, as DeMo's update does; the sign of
            0 is 0.
    """

    def __init__(self, layout: BlockLayout | None = None, sign: bool = False) -> None:
        self.layout = layout or BlockLayout()
        self.sign = sign

    def forward(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return the coefficients, float32 ``[n]``, block after block."""
        values = flat.float()
        transformed = torch.empty_like(values)
        for member in spec.members:
            blocks = self.layout.pack(values, member)
            rows, columns = (cosines(side, flat.device) for side in blocks.shape[1:])
            coefficients = rows @ blocks @ columns.T
            transformed[member.offset : member.offset + member.numel] = coefficients.reshape(-1)
        return transformed

    def inverse(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return the values of the coefficients ``flat[n]``, or their signs."""
        values = torch.empty(spec.numel, dtype=torch.float32, device=flat.device)
        for member in spec.members:
            place = slice(member.offset, member.offset + member.numel)
            blocks = flat[place].float().view(-1, *self.layout.tile(member.shape))
            rows, columns = (cosines(side, flat.device) for side in blocks.shape[1:])
            values[place] = self.layout.unpack(rows.T @ blocks @ columns, member)
        return values.sign_() if self.sign else values


@cache
def cosines(side: int, device: torch.device) -> Tensor:
    """Return the orthonormal DCT-II matrix, float32 ``[side, side]``: row k is frequency k."""
    frequency = torch.arange(side, dtype=torch.float64)[:, None]
    place = torch.arange(side, dtype=torch.float64)[None, :]
    matrix = torch.cos(math.pi * (place + 0.5) * frequency / side) * math.sqrt(2 / side)
    matrix[0] /= math.sqrt(2)
    return matrix.to(device=device, dtype=torch.float32)
