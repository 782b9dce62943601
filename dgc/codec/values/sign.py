"""One bit per value: EF-signSGD (Karimireddy et al., ICML 2019, arXiv 1901.09847)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc.codec.raw import CodecError, pack, typed, unpack
from dgc.codec.values.base import SCALE, Contraction, ValueCoding

BLOCK = 4096


class Sign(ValueCoding):
    """The sign of each value, and one scale per block: ``Q(x) = mean|x| · sign(x)``.

    First one float32 per block of 4096 values, the mean of their magnitudes. Then one bit per
    value, 1 where it is not negative, the first in the lowest bit of the first byte. A block of
    zeros has scale 0 and decodes to zeros; a zero in another block decodes to the scale. A block
    that holds a value that is not finite has scale NaN and decodes to NaN.

    The error is ``‖x‖² − ‖x‖₁²/d`` for a block of d values, so delta = 1/d in the worst case, one
    value that is not zero, and 2/π = 0.64 for normally distributed ones. The paper has one scale
    per layer. With blocks of 4096 the scale costs 0.008 bits per value, and rows and layers of
    different magnitude in one bucket do not share a scale: a scale far above a value's magnitude
    would send it as noise that error feedback takes back in the next step.
    """

    name = 'sign'
    code = 5
    error = Contraction(delta=1 / BLOCK)

    def capacity(self, k: int) -> int:
        """Return 4 bytes per block and ``k/8``, rounded up."""
        return SCALE * blocks(k) + -(-k // 8)

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        magnitudes = pad(values.abs(), (0, -len(values) % BLOCK)).view(-1, BLOCK)
        counts = magnitudes.new_full((len(magnitudes),), BLOCK, dtype=torch.float64)
        counts[-1:] -= -len(values) % BLOCK
        # In float64 the sum of large float32 values cannot overflow, and its last bits, which
        # depend on the order of summation, seldom reach the float32 scale.
        means = magnitudes.sum(1, dtype=torch.float64) / counts
        scales = means.float().where(means.isfinite(), torch.nan)
        bits = (values >= 0).to(torch.uint8)
        return torch.cat([scales.view(torch.uint8), pack(bits, 1)])

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        end = SCALE * blocks(count)
        scales = typed(section[:end], torch.float32)
        if not bool((scales.isnan() | ((scales >= 0) & scales.isfinite())).all()):
            raise CodecError('the scale of a block of signs is negative or infinite')
        values = signs_of_bytes(section.device).index_select(0, section[end:].int()).view(-1)
        whole = count // BLOCK * BLOCK
        values[:whole].view(-1, BLOCK).mul_(scales[: count // BLOCK, None])
        values[whole:].mul_(scales[count // BLOCK :])  # one scale, or none for no values
        return values[:count]


@cache
def signs_of_bytes(device: torch.device) -> Tensor:
    """Return the eight signs that each byte holds, 1 or -1, float32 ``[256, 8]``."""
    bits = unpack(torch.arange(256, dtype=torch.uint8), 1).view(256, 8)
    return bits.to(device, torch.float32) * 2 - 1


def blocks(k: int) -> int:
    """Return the number of blocks that ``k`` values fill."""
    return -(-k // BLOCK)
