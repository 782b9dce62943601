"""Ascending indices near their entropy: the code of Elias (1974) and Fano (1971).

Every one of the k indices below n is cut in two: its l low bits, and ``high = index >> l``.

    l = bit length of n // (2k + 1)        the number of low bits that makes the section shortest

The section is one stream of ``k·l + k + (n >> l)`` bits, filled up with zeros to whole bytes. Bit j
of the stream is bit ``j % 8`` of byte ``j // 8``, where bit 0 is the one of value 1.

    bits                       content
    0 … k·l - 1                the low bits of index 0, then of index 1, …; of each the bit of
                               value 1 first
    k·l … k·l + k + (n>>l) - 1 the high parts in unary: bit ``k·l + high + i`` is one for the i-th
                               index, counted from 0; all others are zero

So the indices 1, 4, 5 of 10 have l = 1; low bits 1, 0, 1; ones at the bits 3 + 0, 3 + 3 and 3 + 4;
and the two bytes ``cd 00``. No index makes no byte. A reader has n and k from the header, so they
are not repeated here. It ignores the bits behind the stream.

Since n >> l ≤ 2k, an index costs l + 1 bits and at most two more, however large n is: 11.95 at one
in a thousand, where no code can do with less than 11.41.

``encode_plainly`` and ``decode_plainly`` are the reference, which the twins in C++ equal byte for
byte.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgc import ops
from dgc.codec.raw import CodecError, pack, unpack
from dgc.ops import native


def low_bits(numel: int, count: int) -> int:
    """l, which minimises ``count·(l + 1) + (numel >> l)``: the smallest with numel >> l ≤ 2·count.

    One more low bit costs ``count`` bits and saves half of the ``numel >> l``, rounded up.
    """
    return (numel // (2 * count + 1)).bit_length()


def stream(numel: int, count: int) -> tuple[int, int]:
    """Where the unary part begins and ends, in bits. Grows with ``count`` and with ``numel``."""
    low = low_bits(numel, count)
    return count * low, count * (low + 1) + (numel >> low)


def length(numel: int, count: int) -> int:
    """Bytes of the section."""
    return -(-stream(numel, count)[1] // 8)


def encode(indices: Tensor, numel: int) -> Tensor:
    """``encode_plainly``, or its twin in C++ where there is one."""
    if not ops.is_native(indices.device):
        return encode_plainly(indices, numel)
    return native.elias_fano_encode(indices, numel, low_bits(numel, len(indices)))


def decode(section: Tensor, numel: int, count: int) -> Tensor:
    """``decode_plainly``, or its twin in C++ where there is one."""
    if not ops.is_native(section.device):
        return decode_plainly(section, numel, count)
    check_length(section, numel, count)
    low = low_bits(numel, count)
    indices, ones = native.elias_fano_decode(section, numel, count, low)
    check_ones(ones, count)
    return indices


def encode_plainly(indices: Tensor, numel: int) -> Tensor:
    """int64 ``[k]``, ascending, unique, from 0 to ``numel - 1``, as uint8 ``[length(numel, k)]``.

    The caller vouches for the order: other indices give a section that means something else.
    """
    count, device = len(indices), indices.device
    low = low_bits(numel, count)
    begin, end = stream(numel, count)
    bits = torch.zeros(end, dtype=torch.uint8, device=device)
    each = torch.arange(low, device=device)
    bits[:begin] = ((indices.unsqueeze(1) >> each) & 1).flatten()
    bits[begin + (indices >> low) + torch.arange(count, device=device)] = 1
    return pack(bits, 1)


def decode_plainly(section: Tensor, numel: int, count: int) -> Tensor:
    """int64 ``[count]`` out of uint8 ``[length(numel, count)]``.

    Whether they ascend and stay below ``numel`` is the caller's to check, as in every coding.
    Raises CodecError where the section has another length or does not hold ``count`` indices.
    Nothing here is larger than a multiple of the section, whatever ``numel`` and ``count`` claim.
    """
    check_length(section, numel, count)
    low = low_bits(numel, count)
    begin, end = stream(numel, count)
    bits = unpack(section, 1)
    ones = bits[begin:end].nonzero().squeeze(1)
    check_ones(len(ones), count)
    high = ones - torch.arange(count, device=section.device)
    each = torch.arange(low, device=section.device)
    return (high << low) + (bits[:begin].view(count, low) << each).sum(1)


def check_length(section: Tensor, numel: int, count: int) -> None:
    """Raise CodecError where a section has not the length of ``count`` indices."""
    if len(section) != length(numel, count):
        raise CodecError(f'{count} packed indices of {numel} do not fill {len(section)} bytes')


def check_ones(ones: int, count: int) -> None:
    """Raise CodecError where the unary part holds another number of indices."""
    if ones != count:
        raise CodecError(f'the packed indices are not {count}, as the header says')
