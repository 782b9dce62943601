"""TernGrad (Wen et al., NeurIPS 2017, arXiv 1705.07878): -1, 0 or 1 times a maximum, unbiased."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc import ops
from dgc.codec.raw import CodecError, typed, unpack
from dgc.codec.values.base import SCALE
from dgc.codec.values.linear import check_scales
from dgc.codec.values.qsgd import QSGD
from dgc.ops import native
from dgc.ops.uniform import keys

PER_BYTE = 5  # numbers of three values: 3^5 = 243 of a byte's 256
VALID = 3**PER_BYTE


class Ternary(QSGD):
    """The numbers of ``QSGD`` with one level, five of them in a byte: 1.6 bits per value.

    ``Q(x) = s·sign(x)·b`` with s the largest magnitude of a block, and b = 1 with probability
    |x|/s, else 0. First one float32 per block of 512 values, its s. Then the bytes: for t = 0, 1,
    2 for -s, 0, s, byte i is ``Σ t[5i + j]·3^j``, and numbers beyond the last value have t = 0.

    The paper has one scale per layer, which costs less and varies more: omega grows with the root
    of the block's length. 'qsgd2' has the same numbers in blocks of 64: 2.5 bits, omega 3.97.
    """

    def __init__(self) -> None:
        super().__init__('ternary', 16, bits=2, block=512)

    def capacity(self, k: int) -> int:
        """Return 4 bytes per block and ``k/5``, rounded up."""
        return SCALE * self._blocks(k) + -(-k // PER_BYTE)

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """Compute ``encode_plainly``, with the numbers from C++ where it is compiled."""
        if not ops.is_native(values.device):
            return self.encode_plainly(values, seed)
        wide = native.qsgd_encode(values, self.bits, self.block, *keys(seed))
        return self._five_to_a_byte(wide, len(values))

    def encode_plainly(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        return self._five_to_a_byte(super().encode_plainly(values, seed), len(values))

    def _five_to_a_byte(self, wide: Tensor, count: int) -> Tensor:
        """Rewrite a section of ``count`` numbers of two bits."""
        end = SCALE * self._blocks(count)
        numbers = unpack(wide[end:], self.bits)[:count]  # two's complement: 0, 1, 3
        digits = pad((numbers + 1).bitwise_and_(3), (0, -count % PER_BYTE)).view(-1, PER_BYTE)
        weights = 3 ** torch.arange(PER_BYTE, dtype=torch.uint8, device=wide.device)
        return torch.cat([wide[:end], (digits * weights).sum(1, dtype=torch.uint8)])

    def decode(self, section: Tensor, count: int) -> Tensor:
        """Compute ``decode_plainly``."""
        return self.decode_plainly(section, count)

    def decode_plainly(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`; also raises CodecError for a byte above 242."""
        end = SCALE * self._blocks(count)
        scales, packed = typed(section[:end], torch.float32), section[end:]
        check_scales(bool((scales.isnan() | ((scales > 0) & scales.isfinite())).all()))
        if bool((packed >= VALID).any()):
            raise CodecError('a byte of five numbers is above 242')
        numbers = numbers_of_bytes(section.device).index_select(0, packed.int())
        return numbers.view(-1)[:count] * scales.repeat_interleave(self.block)[:count]


@cache
def numbers_of_bytes(device: torch.device) -> Tensor:
    """Return the five numbers -1, 0 or 1 of each valid byte, float32 ``[243, 5]``."""
    bytes_ = torch.arange(VALID)[:, None]
    return (bytes_ // 3 ** torch.arange(PER_BYTE) % 3 - 1).to(device, torch.float32)
