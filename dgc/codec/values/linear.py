"""Values as whole numbers of a few bits, in steps whose size is chosen for each block."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc import ops
from dgc.codec.raw import CodecError, pack, typed, unpack
from dgc.codec.values.base import (
    FLOAT32_MAX,
    FLOAT32_TINY,
    SCALE,
    Contraction,
    Unbiased,
    ValueCoding,
)
from dgc.ops import native


class Linear(ValueCoding):
    """Whole numbers of ``bits`` bits, rounded to the nearest, in steps of one size per block.

    First one float32 per block, the size of its steps: the largest magnitude of the block divided
    by ``top``, the 127 or 7 that the bits can count to. Then all numbers, in two's complement, the
    first in the lowest bits of the first byte. A value is off by at most half a step. A block that
    holds a value that is not finite has steps of NaN and decodes to NaN.

    A block is short, so that one outlier makes the steps of few other values coarse, and long
    enough that its scale is cheap: 0.125 bits per value for 256 of 8 bits, 0.25 for 128 of 4 bits,
    whose steps are coarse already.
    """

    error: Contraction | Unbiased

    def __init__(self, name: str, code: int, bits: int, block: int) -> None:
        self.name = name
        self.code = code
        self.bits = bits
        self.block = block
        self.top = 2 ** (bits - 1) - 1
        # The largest value M of a block is exact, the block - 1 others are off by M/(2·top).
        self.error = Contraction(delta=1 - (block - 1) / (2 * self.top) ** 2)

    def capacity(self, k: int) -> int:
        """Return 4 bytes per block and ``k·bits/8``, rounded up."""
        return SCALE * self._blocks(k) - (-k * self.bits // 8)

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """Compute ``encode_plainly``, or the same bytes from C++ where it is compiled."""
        if not ops.is_native(values.device):
            return self.encode_plainly(values, seed)
        return native.linear_encode(values, self.bits, self.block)

    def decode(self, section: Tensor, count: int) -> Tensor:
        """Compute ``decode_plainly``, or the same values from C++ where it is compiled."""
        if not ops.is_native(section.device):
            return self.decode_plainly(section, count)
        values, valid = native.linear_decode(section, count, self.bits, self.block)
        check_scales(valid)
        return values

    def encode_plainly(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        blocks = pad(values, (0, -len(values) % self.block)).view(-1, self.block)
        largest = blocks.abs().amax(1)
        # The floor keeps the steps normal float32 numbers, which all devices divide by alike.
        steps = (largest / self.top).clamp(min=FLOAT32_TINY)
        steps = steps.where(largest.isfinite(), torch.nan)
        # What a NaN is as an integer differs between devices.
        numbers = self._round(blocks / steps.unsqueeze(1), seed).nan_to_num(0)
        unsigned = numbers.to(torch.int8).view(torch.uint8).flatten()[: len(values)]
        fields = unsigned & (2**self.bits - 1)
        return torch.cat([steps.view(torch.uint8), pack(fields, self.bits)])

    def decode_plainly(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        end = SCALE * self._blocks(count)
        steps = typed(section[:end], torch.float32)
        check_scales(bool((steps.isnan() | ((steps > 0) & steps.isfinite())).all()))
        sign = 2 ** (self.bits - 1)
        numbers = (unpack(section[end:], self.bits)[:count] ^ sign).to(torch.float32) - sign
        values = numbers * steps.repeat_interleave(self.block)[:count]
        # The steps were rounded too, so their product may pass the largest float32.
        return values.clamp_(-FLOAT32_MAX, FLOAT32_MAX)

    def _round(self, scaled: Tensor, seed: int) -> Tensor:
        """Round float32 ``[blocks, block]``, about within ``-top`` … ``top``, to integers."""
        return scaled.round()

    def _blocks(self, k: int) -> int:
        return -(-k // self.block)


def check_scales(valid: bool) -> None:
    """Raise CodecError unless all scales of a message are valid."""
    if not valid:
        raise CodecError('the scale of a block of values is negative, zero or infinite')
