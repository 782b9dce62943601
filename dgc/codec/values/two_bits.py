"""Two bits per value: a sign, and one of two magnitudes (SparseLoCo, arXiv 2508.15706)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc.codec.raw import CodecError, pack, typed, unpack
from dgc.codec.values.base import FLOAT32_MAX, SCALE, Contraction, ValueCoding

BLOCK = 64
BFLOAT16_MAX = torch.finfo(torch.bfloat16).max


class TwoBits(ValueCoding):
    """The sign of each value, and whether it is one of the larger of its block of 64.

    First two bfloat16 per block, 32 bits as one float32 scale would take: the mean magnitude of the
    values below the block's mean magnitude, and that of the others. Then two bits per value, the
    first in the lowest bits of the first byte: 1 for those that are not negative, 2 for one of the
    larger. A block whose values are not all finite has magnitudes of NaN
    and decodes to NaN.

    The error of a group of d values is ``‖x‖² − ‖x‖₁²/d``, and the rounding of its mean by at most
    2^-9, so delta = (1 − 2^-16)/64 in the worst case.
    """

    name = '2bit'
    code = 20
    error = Contraction(delta=(1 - 2.0**-16) / BLOCK)

    def capacity(self, k: int) -> int:
        """Return 4 bytes per block and ``k/4``, rounded up."""
        return SCALE * blocks(k) + -(-k // 4)

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        padding = (0, -len(values) % BLOCK)
        # In float64 sums of large float32 values do not overflow, and their last bits, which depend
        # on the order of summation, seldom reach the means.
        magnitudes = pad(values.abs(), padding).view(-1, BLOCK).double()
        is_there = pad(torch.ones_like(values, dtype=torch.bool), padding).view(-1, BLOCK)
        is_large = magnitudes >= mean(magnitudes, is_there)
        low = mean(magnitudes, is_there & ~is_large)
        high = mean(magnitudes, is_there & is_large)
        means = torch.cat([low.where(~low.isnan(), high), high], 1)
        finite = magnitudes.sum(1, keepdim=True).isfinite()
        scales = means.clamp(max=BFLOAT16_MAX).where(finite, torch.nan).to(torch.bfloat16)
        bits = (values >= 0).to(torch.uint8) | is_large.flatten()[: len(values)].to(
            torch.uint8
        ) << 1
        return torch.cat([scales.flatten().view(torch.uint8), pack(bits, 2)])

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        end = SCALE * blocks(count)
        scales = typed(section[:end], torch.bfloat16).float().view(-1, 2)
        if not bool((scales.isnan() | ((scales >= 0) & (scales <= FLOAT32_MAX))).all()):
            raise CodecError(
                'a magnitude of a block of values is a negative scale or an infinite one'
            )
        scales = scales.where(~scales.isnan().any(1, keepdim=True), torch.nan)
        bits = unpack(section[end:], 2)[:count]
        bits = pad(bits, (0, -count % BLOCK)).view(-1, BLOCK)
        low, high = scales.split(1, dim=1)
        of_bits = torch.cat([-low, low, -high, high], 1)
        return of_bits.gather(1, bits.long()).flatten()[:count]


def mean(magnitudes: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of each row over bool ``chosen``, ``[rows, 1]``; NaN where there is none."""
    # A product is faster than ``where``. It is NaN where a magnitude is infinite.
    total = (magnitudes * chosen).sum(1, keepdim=True)
    return total / chosen.sum(1, keepdim=True)


def blocks(k: int) -> int:
    """Return the number of blocks that ``k`` values fill."""
    return -(-k // BLOCK)
