"""QSGD (Alistarh et al., NeurIPS 2017, arXiv 1610.02132): stochastic rounding without bias."""

from __future__ import annotations

import math

from torch import Tensor

from dgc import ops
from dgc.codec.values.base import Unbiased
from dgc.codec.values.linear import Linear
from dgc.ops import native
from dgc.ops.uniform import keys, uniform


class QSGD(Linear):
    """The numbers of ``Linear``, rounded up or down at random so that the mean is the value.

    With s = 2^(bits - 1) - 1 levels, a value of ``(l + p)·M/s``, 0 ≤ p < 1, is written as level
    l + 1 with probability p and as l otherwise (section 3.1 of the paper). M is the norm of its
    block of d values. It is the largest magnitude, as in the paper's experiments, rather than the
    Euclidean norm of its analysis: it does not overflow, it does not depend on the order of a sum,
    so all devices write the same bytes, and it is smaller, so the variance is too:

        omega = min((d - 1) / 4s², √(d - 1) / 2s)      against  min(d / s², √d / s)

    The first since p(1 - p) ≤ 1/4 for each value but the largest, which is exact, and M² ≤ ‖x‖².
    The second since also p(1 - p) ≤ s·|x|/M, and the sum of the |x| over the others is at most
    √(d - 1) of their Euclidean norm.

    The blocks keep omega low for what their scale costs:

        bits   s     d    omega   bits per value with its share of the scale
           8  127  512   0.0079   8.06   the paper's block
           4    7  128   0.648    4.25
           2    1   64   3.97     2.50   128 would have 5.6 and save 0.25 bits

    The bias that remains is below 2^-23 of a step: uniform numbers have 24 bits, and a value
    divided by its step is rounded.
    """

    def __init__(self, name: str, code: int, bits: int, block: int) -> None:
        super().__init__(name, code, bits, block)
        others = block - 1
        self.error = Unbiased(min(others / (4 * self.top**2), math.sqrt(others) / (2 * self.top)))

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """Compute ``encode_plainly``, or the same bytes from C++ where it is compiled."""
        if not ops.is_native(values.device):
            return self.encode_plainly(values, seed)
        return native.qsgd_encode(values, self.bits, self.block, *keys(seed))

    def _round(self, scaled: Tensor, seed: int) -> Tensor:
        lower = scaled.floor()
        # Only the last block is padded, so the n-th number is drawn for value n.
        draws = uniform(seed, scaled.numel(), scaled.device).view_as(scaled)
        numbers = lower + (draws < scaled - lower)
        # The rounding of a step can put the largest value just above top, whose next number
        # would not fit in the bits.
        return numbers.clamp_(-self.top, self.top)
