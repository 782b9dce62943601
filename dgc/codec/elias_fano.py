"""Ascending indices in nearly as few bits as their entropy: Elias (1974) and Fano (1971).

Each of the k indices below n is split into its l low bits and ``high = index >> l``.

    l = bit length of n // (2k + 1)        the number of low bits for which the section is shortest

The section is one stream of ``k·l + k + (n >> l)`` bits, padded with zeros to whole bytes. Bit j
of the stream is bit ``j % 8`` of byte ``j // 8``, where bit 0 is the least significant.

    bits                       content
    0 … k·l - 1                the low bits of index 0, then of index 1, …; of each the least
                               significant first
    k·l … k·l + k + (n>>l) - 1 the high parts in unary: bit ``k·l + high + i`` is one for the i-th
                               index, counted from 0; all others are zero

So the indices 1, 4, 5 of 10 have l = 1; low bits 1, 0, 1; ones at the bits 3 + 0, 3 + 3 and 3 + 4;
and the two bytes ``cd 00``. Without indices the section is empty. A reader knows n and k from the
header of the message, and ignores the bits behind the stream.

Since n >> l ≤ 2k, an index costs between l + 1 and l + 3 bits, however large n is: 11.95 bits at a
density of 0.001, whose entropy is 11.41.

``encode_plainly`` and ``decode_plainly`` are the reference, which the C++ equals byte for byte.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgc import ops
from dgc.codec.raw import CodecError, pack, unpack
from dgc.ops import native


def low_bits(numel: int, count: int) -> int:
    """Return the l that minimises ``count·(l + 1) + (numel >> l)``.

    It is the smallest l with numel >> l ≤ 2·count.

    One more low bit costs ``count`` bits and saves half of the ``numel >> l``, rounded up.
    """
    return (numel // (2 * count + 1)).bit_length()


def stream(numel: int, count: int) -> tuple[int, int]:
    """Return the first and last (exclusive) bit of the unary part; both grow with the arguments."""
    low = low_bits(numel, count)
    return count * low, count * (low + 1) + (numel >> low)


def length(numel: int, count: int) -> int:
    """Return the length of the section in bytes."""
    return -(-stream(numel, count)[1] // 8)


def encode(indices: Tensor, numel: int) -> Tensor:
    """Compute ``encode_plainly``, or the same bytes from C++ where it is compiled."""
    if not ops.is_native(indices.device):
        return encode_plainly(indices, numel)
    return native.elias_fano_encode(indices, numel, low_bits(numel, len(indices)))


def decode(section: Tensor, numel: int, count: int) -> Tensor:
    """Compute ``decode_plainly``, or the same indices from C++ where it is compiled."""
    if not ops.is_native(section.device):
        return decode_plainly(section, numel, count)
    check_length(section, numel, count)
    low = low_bits(numel, count)
    indices, ones = native.elias_fano_decode(section, numel, count, low)
    check_ones(ones, count)
    return indices


def encode_plainly(indices: Tensor, numel: int) -> Tensor:
    """Write int64 ``[k]`` as uint8 ``[length(numel, k)]``.

    The indices must be unique and ascend within 0 … ``numel - 1``, which is not checked: others
    give a section that decodes to different indices.
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
    """Read int64 ``[count]`` from uint8 ``[length(numel, count)]``.

    The caller checks that the indices ascend below ``numel``, as for every coding. No tensor made
    here is larger than a multiple of the section, for any ``numel`` and ``count``.

    Raises:
        CodecError: the section has another length, or does not hold ``count`` indices.
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
    """Raise CodecError unless a section has the length of ``count`` indices."""
    if len(section) != length(numel, count):
        raise CodecError(f'{count} packed indices of {numel} do not fill {len(section)} bytes')


def check_ones(ones: int, count: int) -> None:
    """Raise CodecError unless the unary part holds ``count`` indices."""
    if ones != count:
        raise CodecError(f'the packed indices are not {count}, as the header says')
