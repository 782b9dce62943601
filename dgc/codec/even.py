"""Indices spread evenly over chunks, in as few bits as their entropy: an enumerative code.

The tensor's n elements are cut into chunks of c, the last of which may be shorter. Of k indices,
the m-th (counted from 0) must lie in the chunk in which the m-th of k evenly spaced positions lies:

    chunk of the m-th index = ⌊⌊m·n / k⌋ / c⌋

So every chunk of c elements holds ⌊k·c/n⌋ or ⌈k·c/n⌉ indices, and the same number q each where
k = ⌊q·n/c⌋. A reader knows these numbers from n and k, which the header of the message has. Each
chunk is then written as one number: which of the subsets of q of its s elements it holds.

    bits of a chunk = bit length of C(s, q) - 1         64 of 4,096: 472 bits, 7.375 an index

(of the largest binomial C(s, ·) where q > s/2, so that fewer indices never take more). The section
is one stream of these numbers, chunk after chunk, padded with zeros to whole bytes. Bit j of the
stream is bit ``j % 8`` of byte ``j // 8``, and each number has its least significant bit first. Its
length depends on n and k alone, so ranks need not exchange lengths.

The number of a subset splits the s elements into halves of ⌊s/2⌋ and ⌈s/2⌉ (Cover, IEEE Trans.
Inform. Theory, 1973, with a division by halves). With l of the q elements in the left half it is

    number(subset) = Σ_{j > l} C(⌊s/2⌋, j)·C(⌈s/2⌉, q - j)           subsets with more on the left
                   + number(left)·C(⌈s/2⌉, q - l) + number(right)

and 0 for none or all of the elements. So the number of a single element is its place.

``encode_plainly`` and ``decode_plainly`` are the reference in Python's integers, which the C++
equals byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from math import comb

import torch
from torch import Tensor

from dgc import ops
from dgc.codec.raw import CodecError
from dgc.ops import native

CHUNK = 4096


def chunk_of(place: int, numel: int, count: int, chunk: int = CHUNK) -> int:
    """Return the chunk in which index number ``place`` of ``count`` must lie."""
    return place * numel // count // chunk


def is_even(indices: Tensor, numel: int, chunk: int = CHUNK) -> bool:
    """Compute ``is_even_plainly``, or the same answer from C++ where it is compiled."""
    check = native.is_even if ops.is_native(indices.device) else is_even_plainly
    return check(indices, numel, chunk)


def is_even_plainly(indices: Tensor, numel: int, chunk: int = CHUNK) -> bool:
    """Return whether int64 ``[k]``, which ascend below ``numel``, are spread as the code needs."""
    count = len(indices)
    if not count:
        return True
    places = torch.arange(count, device=indices.device)
    # m·n would pass 2^63 for large tensors: ⌊m·n/k⌋ = m·⌊n/k⌋ + ⌊m·(n mod k)/k⌋.
    spaced = places * (numel // count) + places * (numel % count) // count
    return torch.equal(indices // chunk, spaced // chunk)


def bits_of(size: int, count: int) -> int:
    """Return the bits of a chunk of ``size`` elements that holds ``count`` indices."""
    return (binomial(size, min(count, size // 2)) - 1).bit_length()


def stream_bits(numel: int, count: int, chunk: int = CHUNK) -> int:
    """Return the bits of ``count`` indices of ``numel`` elements, in a time that depends on
    neither."""
    if not count or not numel:
        return 0
    count = min(count, numel)
    whole, rest = divmod(numel, chunk)
    within = -(-count * whole * chunk // numel)  # indices of the complete chunks
    bits = bits_of(rest, count - within)
    if whole:
        fewer, more = divmod(within, whole)
        bits += (whole - more) * bits_of(chunk, fewer)
        bits += more * bits_of(chunk, fewer + 1) if more else 0
    return bits


def length(numel: int, count: int, chunk: int = CHUNK) -> int:
    """Return the length of the section in bytes; does not decrease with ``count``."""
    return -(-stream_bits(numel, count, chunk) // 8)


def encode(indices: Tensor, numel: int, chunk: int = CHUNK) -> Tensor:
    """Compute ``encode_plainly``, or the same bytes from C++ where it is compiled."""
    if not ops.is_native(torch.device('cpu')):
        return encode_plainly(indices, numel, chunk)
    section = native.even_encode(indices.cpu(), numel, chunk, length(numel, len(indices), chunk))
    return section.to(indices.device)


def decode(section: Tensor, numel: int, count: int, chunk: int = CHUNK) -> Tensor:
    """Compute ``decode_plainly``, or the same indices from C++ where it is compiled."""
    if not ops.is_native(torch.device('cpu')):
        return decode_plainly(section, numel, count, chunk)
    check_length(section, numel, count, chunk)
    indices, bad = native.even_decode(section.cpu(), numel, count, chunk)
    check_number(bad)
    return indices.to(section.device)


def encode_plainly(indices: Tensor, numel: int, chunk: int = CHUNK) -> Tensor:
    """Write int64 ``[k]`` as uint8 ``[length(numel, k)]``.

    The indices must ascend below ``numel`` and be spread evenly (``is_even``), which is not
    checked.
    """
    listed, stream, bit, first = indices.tolist(), 0, 0, 0
    for begin, size, count in chunks_of(numel, len(listed), chunk):
        places = [index - begin for index in listed[first : first + count]]
        stream |= number_of(places, size) << bit
        bit, first = bit + bits_of(size, count), first + count
    raw = bytearray(stream.to_bytes(length(numel, len(listed), chunk), 'little'))
    if not raw:
        return torch.empty(0, dtype=torch.uint8, device=indices.device)
    return torch.frombuffer(raw, dtype=torch.uint8).to(indices.device)


def decode_plainly(section: Tensor, numel: int, count: int, chunk: int = CHUNK) -> Tensor:
    """Read int64 ``[count]`` from uint8 ``[length(numel, count)]``.

    Raises:
        CodecError: The section has another length, or a chunk's number is that of no subset.
    """
    check_length(section, numel, count, chunk)
    stream = int.from_bytes(section.cpu().numpy().tobytes(), 'little')
    indices: list[int] = []
    for at, (begin, size, held) in enumerate(chunks_of(numel, count, chunk)):
        bits = bits_of(size, held)
        number, stream = stream & ((1 << bits) - 1), stream >> bits
        check_number(-1 if number < binomial(size, held) else at)
        indices += [begin + place for place in subset_of(number, size, held)]
    return torch.tensor(indices, dtype=torch.int64, device=section.device)


def chunks_of(numel: int, count: int, chunk: int = CHUNK) -> Iterator[tuple[int, int, int]]:
    """Yield the chunks that hold indices: their first element, their size and how many they
    hold."""
    numbers = (chunk_of(place, numel, count, chunk) for place in range(count))
    for number, places in groupby(numbers):
        begin = number * chunk
        yield begin, min(chunk, numel - begin), sum(1 for _ in places)


def number_of(places: Sequence[int], size: int) -> int:
    """Return the number of a subset of ``size`` elements, given by its ascending places."""
    if len(places) in (0, size):
        return 0
    half = size // 2
    left = [place for place in places if place < half]
    right = [place - half for place in places[len(left) :]]
    weight = binomial(size - half, len(right))
    number = more_on_the_left(size, len(places))[len(left)]
    return number + number_of(left, half) * weight + number_of(right, size - half)


def subset_of(number: int, size: int, count: int) -> list[int]:
    """Invert ``number_of``: return the ascending places of a subset of ``count`` elements."""
    if count in (0, size):
        return list(range(count))
    half, above = size // 2, more_on_the_left(size, count)
    left = next(held for held, first in above.items() if first <= number)
    first, second = divmod(number - above[left], binomial(size - half, count - left))
    right = subset_of(second, size - half, count - left)
    return subset_of(first, half, left) + [half + place for place in right]


@lru_cache(maxsize=4096)
def more_on_the_left(size: int, count: int) -> dict[int, int]:
    """Return, for each possible number of elements in the left half, ascending, how many subsets
    have more of them there."""
    half = size // 2
    possible = range(max(0, count - (size - half)), min(count, half) + 1)
    found, total = {}, 0
    for held in reversed(possible):
        found[held] = total
        total += binomial(half, held) * binomial(size - half, count - held)
    return dict(reversed(found.items()))


@lru_cache(maxsize=65536)
def binomial(size: int, count: int) -> int:
    """Return the number of subsets of ``count`` of ``size`` elements."""
    return comb(size, count)


def check_length(section: Tensor, numel: int, count: int, chunk: int = CHUNK) -> None:
    """Raise CodecError unless a section has the length of ``count`` indices."""
    if len(section) != length(numel, count, chunk):
        raise CodecError(f'{count} indices of {numel} in chunks do not fill {len(section)} bytes')


def check_number(bad: int) -> None:
    """Raise CodecError for a chunk, counted from 0 and -1 for none, whose number is too large."""
    if bad >= 0:
        raise CodecError(f'the indices of chunk {bad} are none of its subsets')
