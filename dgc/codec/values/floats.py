"""Values as floating-point numbers of 32 or 16 bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dgc.codec.raw import CodecError, typed
from dgc.codec.values.base import FLOAT32_MAX, SCALE, Contraction, ValueCoding

TOP_EXPONENT = 14  # scaled values lie below 2^15, half of what float16 can hold


class Float32(ValueCoding):
    """float32, little-endian, unchanged."""

    name = 'fp32'
    code = 0
    error = Contraction(delta=1.0)

    def capacity(self, k: int) -> int:
        """Return ``4k``."""
        return k * torch.float32.itemsize

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        return values.contiguous().view(torch.uint8)

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        return typed(section, torch.float32).clamp(-FLOAT32_MAX, FLOAT32_MAX)


class Scaled(ValueCoding):
    """A float32 scale, then each value divided by it as a 16-bit float, little-endian.

    The scale is the power of two that brings the largest value just below 2^15, so that float16
    neither overflows nor rounds to zero a small value, which error feedback would then select
    again in every step.
    """

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self.dtype = dtype
        # Rounding to nearest is off by at most eps/2, relative to the value.
        self.error = Contraction(delta=1 - (torch.finfo(dtype).eps / 2) ** 2)

    def capacity(self, k: int) -> int:
        """Return ``4 + 2k``."""
        return SCALE + k * self.dtype.itemsize

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        scale = power_of_two(values)
        scaled = (values / scale).to(self.dtype)
        return torch.cat([values.new_tensor([scale]).view(torch.uint8), scaled.view(torch.uint8)])

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        scale = float(typed(section[:SCALE], torch.float32))
        if not (math.isfinite(scale) and scale > 0):
            raise CodecError(f'the scale of the values is {scale}: it must be positive and finite')
        values = typed(section[SCALE:], self.dtype).to(torch.float32) * scale
        # Rounding up to 16 bits may have passed the largest float32.
        return values.clamp_(-FLOAT32_MAX, FLOAT32_MAX)


def power_of_two(values: Tensor) -> float:
    """Return the divisor that brings the largest magnitude into [2^14, 2^15).

    Returns 1 where all values are zero or one is not finite. Waits for the device of the values.
    """
    largest = float(values.abs().max()) if len(values) else 0.0
    if not math.isfinite(largest) or largest == 0:
        return 1.0
    # frexp's mantissa is below 1, so values / scale < 2^15. The floor keeps the scale and its
    # inverse normal float32 numbers.
    return 2.0 ** max(math.frexp(largest)[1] - TOP_EXPONENT - 1, -120)
