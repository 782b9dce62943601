"""The k-th largest number among all ranks', without gathering them."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.engines.base import Engine

DIGIT = 8  # bits per round
BINS = 1 << DIGIT


def kth_largest(values: Tensor, k: int, engine: Engine) -> float:
    """Return the ``k``-th largest magnitude among every rank's float32 ``values[m]``; 0 where there
    are fewer. A NaN is larger than any number.

    A radix selection: the bits of a magnitude, read as an integer, order as it does. Each round
    counts, over all ranks, the numbers that begin with the digits found so far, by their next
    digit. The number of rounds does not depend on the data: every rank must make the same calls.
    """
    bits = values.abs().view(torch.int32).long()
    prefix, missing, enough = 0, k, True
    for shift in range(32 - DIGIT, -1, -DIGIT):
        candidates = bits[bits >> (shift + DIGIT) == prefix]
        digits = (candidates >> shift) & (BINS - 1)
        counts = torch.bincount(digits, minlength=BINS).int()
        from_above = engine.all_reduce(counts).flip(0).cumsum(0)  # at or above 255, 254, …
        enough = enough and bool(from_above[-1] >= missing)
        place = int((from_above >= missing).int().argmax())
        missing -= int(from_above[place - 1]) if place else 0
        prefix = (prefix << DIGIT) | (BINS - 1 - place)
    if not enough:
        return 0.0
    return float(torch.tensor(prefix, dtype=torch.int32).view(torch.float32))
