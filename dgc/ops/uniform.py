"""Uniform random numbers from a seed and a position, the same on every device.

A counter-based generator: number i is a hash of (seed, i), so it does not depend on how the work
is divided among threads, and the C++ in ``dgc/ops/csrc/codec.cpp`` draws the same ones.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
IntOrTensor = TypeVar('IntOrTensor', int, Tensor)


def mix(x: IntOrTensor) -> IntOrTensor:
    """Hash 32-bit numbers bijectively; each input bit changes about half of the output bits.

    The finalizer "16 21f0aaad 15 735a2d97 15" of Wellons' hash prospector. Its multipliers are
    below 2^31, so that int64 holds each product.
    """
    x = x ^ (x >> 16)
    x = (x * 0x21F0AAAD) & MASK
    x = x ^ (x >> 15)
    x = (x * 0x735A2D97) & MASK
    return x ^ (x >> 15)


def keys(seed: int) -> tuple[int, int]:
    """Return two keys of 32 bits for any integer seed; seeds are equal modulo 2^64."""
    low, high = seed & MASK, (seed >> 32) & MASK
    # The constants, 2^32 divided by the golden ratio and by √2, keep seed 0 from the fixed point
    # mix(0) = 0.
    return mix(mix(low ^ 0x9E3779B9) ^ high), mix(mix(high ^ 0xB504F334) ^ low)


def uniform(seed: int, count: int, device: torch.device) -> Tensor:
    """Return float32 ``[count]``, uniform over the multiples of 2^-24 in [0, 1)."""
    first, second = keys(seed)
    positions = torch.arange(count, device=device)
    # Each key enters before a mix of its own: with one alone, two seeds would draw the same
    # numbers in another order.
    mixed = mix(mix((positions & MASK) ^ first) ^ second ^ (positions >> 32))
    return (mixed >> 8).to(torch.float32) * 2.0**-24
