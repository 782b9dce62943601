"""Stochastic rounding of float32 to bfloat16, the same bits on every device.

A bfloat16 is the upper half of a float32. Added to the lower half, 16 random bits carry into the
upper one with the probability that makes the mean equal to the number: the distance to the
neighbour below, in units of the distance between the two. So the expectation of the error is 0
exactly, its magnitude is below the distance of two neighbours, 2^-7 of the number (unless that is
below the smallest normal one, 2^-126), and a number that a bfloat16 holds stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.ops.uniform import MASK, mix
from dgc.sparse import Sparse

Keys = tuple[int, int]  # 32 bits each, new ones for each rounding: ``dgc.ops.uniform.keys``

INFINITY = 0x7F800000  # as a float32's bits; those of a NaN are larger


def draws(keys: Keys, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return two numbers of 16 bits for each of int64 ``positions``, as int64: one for the
    residual or velocity at that position, one for its momentum.

    One hash gives both: keys that are uniformly distributed make each of them so.
    """
    first, second = keys
    both = mix((positions & MASK) ^ first) ^ second ^ mix(positions >> 32)
    return both >> 16, both & 0xFFFF


def rounded(values: Tensor, draw: Tensor) -> Tensor:
    """Return float32 ``values`` as bfloat16, rounded by ``draw``, numbers of 16 bits.

    What is not finite stays so, cut to its upper half. A finite number above the largest bfloat16
    may become an infinity.
    """
    words = values.view(torch.int32)
    is_finite = (words & 0x7FFFFFFF) < INFINITY
    # Sign and magnitude: adding to the bits adds to the magnitude. The shift keeps the sign.
    upper = (words + draw.to(torch.int32) * is_finite) >> 16
    return upper.to(torch.int16).view(torch.bfloat16)


def add_rounded(flat: Tensor, part: Sparse, keys: Keys) -> None:
    """Compute ``flat += part`` for bfloat16 ``flat[n]``, rounded where ``part`` has elements."""
    if part.indices is None:
        positions = torch.arange(part.numel, device=flat.device)
        total = flat.float().add_(part.values)
    else:
        positions, places = torch.unique(part.indices, return_inverse=True)
        total = flat[positions].float().index_add_(0, places, part.values)
    flat[positions] = rounded(total, draws(keys, positions)[0])
