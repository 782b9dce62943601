"""How the values of a message are written: one class a coding, one entry in the table.

What a coding rounds off is the memory's to keep. None ever decodes to an infinity; every one can
carry a NaN, by which a worker tells the others to stop (``dgc/nonfinite.py``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc import ops
from dgc.codec.raw import CodecError, pack, typed, unpack
from dgc.ops import native

FLOAT32_MAX = torch.finfo(torch.float32).max
FLOAT32_TINY = torch.finfo(torch.float32).tiny  # smallest with all its bits
SCALE = 4  # bytes of a scale, a float32
TOP_EXPONENT = 14  # scaled values lie below 2^15, half of what float16 can hold


class ValueCoding(ABC):
    """Writes values, rounded as it may be.

    name: as in settings; code: as in the header.
    """

    name: str
    code: int

    @abstractmethod
    def capacity(self, k: int) -> int:
        """Bytes of ``k`` values; fewer values never take more."""

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """float32 ``[k]`` as uint8 ``[capacity(k)]``."""

    @abstractmethod
    def decode(self, section: Tensor, count: int) -> Tensor:
        """float32 ``[count]``, a new one, out of uint8 ``[capacity(count)]``.

        Raises CodecError for a scale that makes no sense.
        """


class Float32(ValueCoding):
    """As they are, little-endian."""

    name = 'fp32'
    code = 0

    def capacity(self, k: int) -> int:
        """``4k``."""
        return k * torch.float32.itemsize

    def encode(self, values: Tensor) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        return values.contiguous().view(torch.uint8)

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        return typed(section, torch.float32).clamp(-FLOAT32_MAX, FLOAT32_MAX)


class Scaled(ValueCoding):
    """A scale, float32, then each value divided by it, in a float of 16 bits, little-endian.

    The scale is the power of two that brings the largest value just below 2^15: float16 then
    neither overflows nor loses a small value that would be selected again for ever.
    """

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self.dtype = dtype

    def capacity(self, k: int) -> int:
        """``4 + 2k``."""
        return SCALE + k * self.dtype.itemsize

    def encode(self, values: Tensor) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        scale = power_of_two(values)
        scaled = (values / scale).to(self.dtype)
        return torch.cat([values.new_tensor([scale]).view(torch.uint8), scaled.view(torch.uint8)])

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        scale = float(typed(section[:SCALE], torch.float32))
        if not (math.isfinite(scale) and scale > 0):
            raise CodecError(f'the values have scale {scale}, which is no scale')
        values = typed(section[SCALE:], self.dtype).to(torch.float32) * scale
        return values.clamp_(-FLOAT32_MAX, FLOAT32_MAX)  # rounding up may have passed it


class Linear(ValueCoding):
    """Whole numbers of ``bits`` bits, in steps of a size of their own for each block of values.

    First a float32 a block, the size of its steps: its largest magnitude over the 127 or 7 that
    the bits can count to. Then all numbers, in two's complement, the first in the lowest bits of
    the first byte. Half a step is the most that is rounded off. A block that holds a value that is
    not finite has steps of NaN and decodes to NaN.

    A block is short enough that one outlier costs few others their precision, and long enough that
    its scale is cheap: an eighth of a bit a value for 256 of 8 bits, a quarter for 128 of 4 bits,
    where a step too coarse costs sixteen times as much.
    """

    def __init__(self, name: str, code: int, bits: int, block: int) -> None:
        self.name = name
        self.code = code
        self.bits = bits
        self.block = block
        self.top = 2 ** (bits - 1) - 1

    def capacity(self, k: int) -> int:
        """4 a block, and ``k·bits/8``, rounded up."""
        return SCALE * self._blocks(k) - (-k * self.bits // 8)

    def encode(self, values: Tensor) -> Tensor:
        """``encode_plainly``, or its twin in C++ where there is one."""
        if not ops.is_native(values.device):
            return self.encode_plainly(values)
        return native.linear_encode(values, self.bits, self.block)

    def decode(self, section: Tensor, count: int) -> Tensor:
        """``decode_plainly``, or its twin in C++ where there is one."""
        if not ops.is_native(section.device):
            return self.decode_plainly(section, count)
        values, sound = native.linear_decode(section, count, self.bits, self.block)
        check_steps(sound)
        return values

    def encode_plainly(self, values: Tensor) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        blocks = pad(values, (0, -len(values) % self.block)).view(-1, self.block)
        largest = blocks.abs().amax(1)
        # The floor keeps the steps normal float32 numbers, which all devices divide by alike.
        steps = (largest / self.top).clamp(min=FLOAT32_TINY)
        steps = steps.where(largest.isfinite(), torch.nan)
        # What a NaN is as an integer differs between devices.
        numbers = (blocks / steps.unsqueeze(1)).round().nan_to_num(0)
        unsigned = numbers.to(torch.int8).view(torch.uint8).flatten()[: len(values)]
        fields = unsigned & (2**self.bits - 1)
        return torch.cat([steps.view(torch.uint8), pack(fields, self.bits)])

    def decode_plainly(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        end = SCALE * self._blocks(count)
        steps = typed(section[:end], torch.float32)
        check_steps(bool((steps.isnan() | ((steps > 0) & steps.isfinite())).all()))
        sign = 2 ** (self.bits - 1)
        numbers = (unpack(section[end:], self.bits)[:count] ^ sign).to(torch.float32) - sign
        values = numbers * steps.repeat_interleave(self.block)[:count]
        return values.clamp_(-FLOAT32_MAX, FLOAT32_MAX)  # the steps were rounded too

    def _blocks(self, k: int) -> int:
        return -(-k // self.block)


VALUES: dict[str, ValueCoding] = {
    coding.name: coding
    for coding in (
        Float32(),
        Scaled('fp16', 1, torch.float16),
        Scaled('bf16', 2, torch.bfloat16),
        Linear('int8', 3, bits=8, block=256),
        Linear('int4', 4, bits=4, block=128),
    )
}


def check_steps(sound: bool) -> None:
    """Raise CodecError where the sizes of steps are not all sound."""
    if not sound:
        raise CodecError('a block of values has a scale that is no scale')


def power_of_two(values: Tensor) -> float:
    """What to divide by so that the largest value lies in [2^14, 2^15); 1 where that is no help."""
    largest = float(values.abs().max()) if len(values) else 0.0
    if not math.isfinite(largest) or largest == 0:
        return 1.0
    # frexp's mantissa is below 1, so values / scale < 2^15. The floor keeps the scale and its
    # inverse normal float32 numbers.
    return 2.0 ** max(math.frexp(largest)[1] - TOP_EXPONENT - 1, -120)
