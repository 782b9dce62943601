"""Natural compression (Horváth et al., arXiv 1905.10988): powers of two, rounded at random."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dgc.codec.raw import CodecError, typed
from dgc.codec.values.base import FLOAT32_MAX, SCALE, Unbiased, ValueCoding
from dgc.ops.uniform import uniform

TOP = 126  # the code of the largest power; 0 is the value 0, and 127 a NaN
NAN = 127
SIGN = 128
LEAST_EXPONENT = -125  # of the largest magnitude, so that the scale is a normal number


class Natural(ValueCoding):
    """Each value is rounded to the power of two above or below it, with the value as the mean.

    A magnitude of ``(1 + p)·2^a``, 0 ≤ p < 1, is written as 2^(a+1) with probability p and as 2^a
    otherwise. The variance is ``p·(1 - p)·4^a``, which is at most an eighth of the value's square.

    First a float32, 2^(E-1), where 2^E is the least power above all magnitudes. Then a byte per
    value: its sign in the highest bit, and below it c = 126 for 2^E, one less for half as much,
    down to c = 1 for 2^(E-125); c = 0 for the value 0 and c = 127 for what is not finite. A
    magnitude below the least power becomes that power or 0, without bias too. The paper writes all
    8 bits of float32's exponent, 9 bits with the sign; relative to the largest, 7 are enough.
    """

    name = 'natural'
    code = 17
    error = Unbiased(omega=1 / 8)

    def capacity(self, k: int) -> int:
        """Return ``4 + k``."""
        return SCALE + k

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        magnitudes, finite = values.abs(), values.isfinite()
        mantissas, exponents = torch.frexp(magnitudes)  # m·2^e, with m from 0.5 to below 1
        exponents = exponents.where(finite & (magnitudes > 0), LEAST_EXPONENT)
        largest = max(int(exponents.max()) if len(values) else 0, LEAST_EXPONENT)
        draws = uniform(seed, len(values), values.device)
        rises = draws < 2 * mantissas - 1
        codes = (exponents - 1 + rises) - largest + TOP
        least = 2.0 ** (largest - TOP + 1)
        small = magnitudes.double() < least
        codes = codes.where(~small, (draws < magnitudes.double() / least).int())
        codes = codes.where(finite, NAN).to(torch.uint8)
        codes += SIGN * (values < 0)
        scale = values.new_tensor([2.0 ** (largest - 1)])
        return torch.cat([scale.view(torch.uint8), codes])

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        scale = float(typed(section[:SCALE], torch.float32))
        if not (math.isfinite(scale) and scale > 0):
            raise CodecError(f'the scale of the values is {scale}: it must be positive and finite')
        codes = section[SCALE:].int()
        return magnitudes_of_codes(scale).to(section.device).index_select(0, codes)


def magnitudes_of_codes(scale: float) -> Tensor:
    """Return the value of each byte, float32 ``[256]``; the largest power may pass float32."""
    powers = 2.0 * scale * 2.0 ** (torch.arange(128, dtype=torch.float64) - TOP)
    powers[0], powers[NAN] = 0.0, torch.nan
    return torch.cat([powers, -powers]).clamp(-FLOAT32_MAX, FLOAT32_MAX).float()
