"""A message is one buffer: a header, the indices, the values. All of it is little-endian.

    offset  bytes  field
         0      4  magic, b'DGC' and the version of this format
         4      1  coding of the values   (VALUES)
         5      1  coding of the indices  (INDICES)
         6      2  zero
         8      8  numel: n, elements of the tensor
        16      8  count: k, elements in the message
        24      8  length: bytes of the whole message, a multiple of 8
        32      …  indices, ascending
         …      …  values, in the order of the indices
         …    0-7  zeros

    indices  code  bytes of k of n             written
    int64       0  8k                          as they are
    int32       1  4k                          as they are; n up to 2^31 - 1
    packed      2  (k·(l+1) + (n >> l)) / 8    elias_fano.py, also for l
    none        3  0                           k = n: all elements, in order (a dense message)
    even        4  59·⌈n/4096⌉ for k = n/64    even.py: as many of each chunk of 4,096 elements

    values   code  bytes of k                  written (values/)
    fp32        0  4k                          as they are
    fp16        1  4 + 2k                      a float32 scale, then the values divided by it
    bf16        2  4 + 2k                      the same
    int8        3  4·⌈k/256⌉ + k               a float32 per block of 256 values, then the numbers
    int4        4  4·⌈k/128⌉ + k/2             a float32 per block of 128 values, then the numbers
    sign        5  4·⌈k/4096⌉ + k/8            a float32 per block of 4096 values, then the signs
    qsgd8       6  4·⌈k/512⌉ + k               as int8, rounded at random
    qsgd4       7  4·⌈k/128⌉ + k/2             as int4, rounded at random
    qsgd2       8  4·⌈k/64⌉ + k/4              a float32 per block of 64 values, then -1, 0 or 1
    ternary    16  4·⌈k/512⌉ + k/5             a float32 per block of 512, then five numbers a byte
    natural    17  4 + k                       a float32 scale, then signs and powers of two
    2bit       20  4·⌈k/64⌉ + k/4              two magnitudes per block of 64 values, then for each
                                               the sign, and which of both
    fp4        21  4·⌈k/64⌉ + k/2              a float32 per block of 64 values, then E2M1 numbers
    fp4e3      22  4·⌈k/64⌉ + k/2              the same with E3M0 numbers

Sections follow each other without gaps, so the values may begin at any byte. The length of each is
known from n and k. The header repeats the whole length for programs that only carry messages, and
because most damage to a header then shows. A receiver trusts no field: a buffer that does not fit
its header is refused with a CodecError, before anything is allocated that is larger than a multiple
of the bytes received. A new coding leaves the version as it is: a reader that lacks it refuses its
code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dgc.codec.indices import INDICES, IndexCoding, are_in_order, in_order
from dgc.codec.raw import CodecError
from dgc.codec.values import VALUES, Contraction, Unbiased, ValueCoding
from dgc.sparse import Sparse

VERSION = 2
MAGIC = b'DGC' + bytes([VERSION])
HEADER = struct.Struct('<4sBB2xqqq')
KEPT: dict[tuple[bytes, torch.device], Tensor] = {}  # headers, on the device of messages
MOST_KEPT = 1024
ALIGNMENT = 8  # of a whole message, so that messages in one buffer can be viewed as any type

VALUE_CODES = {coding.code: coding for coding in VALUES.values()}
INDEX_CODES = {coding.code: coding for coding in INDICES.values()}


class Codec:
    """Writes a message of ``k`` of ``n`` elements as bytes, and reads it back.

    Indices are exact, values rounded as their coding defines.

    Args:
        values: a name in VALUES: 'fp32', 'fp16', 'bf16', 'int8', 'int4', 'fp4', 'fp4e3', '2bit',
            'sign', 'qsgd8', 'qsgd4', 'qsgd2', 'ternary' or 'natural'.
        indices: a name in INDICES: 'int64', 'int32' or 'packed' for sparse messages, 'even' for
            those with equally many elements of each chunk, 'none' for dense ones.

    Raises:
        ValueError: there is no coding of that name.
    """

    def __init__(self, values: str = 'fp32', indices: str = 'int64') -> None:
        if values not in VALUES or indices not in INDICES:
            raise ValueError(
                f'values must be one of {list(VALUES)} and indices one of {list(INDICES)}, '
                f'got {values!r} and {indices!r}'
            )
        self.values = values
        self.indices = indices

    @property
    def error(self) -> Contraction | Unbiased:
        """What the value coding guarantees about its quantization error."""
        return VALUES[self.values].error

    @property
    def chunk(self) -> int | None:
        """Elements of the chunks over which indices must be spread evenly; None for anywhere."""
        return INDICES[self.indices].chunk

    def capacity(self, numel: int, k: int) -> int:
        """Return the bytes of a message of ``k`` of ``numel`` elements.

        It does not decrease with ``k``.

        Raises:
            ValueError: the index coding cannot number so many elements, or it is 'none' and ``k``
                is not ``numel``.
        """
        indices = INDICES[self.indices]
        indices.check(numel, k)
        return layout(VALUES[self.values], indices, numel, k).length

    def encode(self, sparse: Sparse, seed: int = 0) -> Tensor:
        """Write a message as uint8 ``[capacity(n, k)]``, on the device of its values.

        Args:
            sparse: with ``indices=None``, a dense message, exactly where the index coding is
                'none'.
            seed: of a stochastic value coding: the same message and seed give the same bytes, on
                every device. Errors only average out over messages whose seeds differ, so it
                should depend on the step, the rank and the bucket. Other codings ignore it.

        Raises:
            ValueError: the message is dense and the index coding is not 'none', or the reverse, or
                the indices do not ascend within 0 … n-1.
        """
        values, indices = VALUES[self.values], INDICES[self.indices]
        numel, count = sparse.numel, len(sparse.values)
        length = self.capacity(numel, count)
        header = HEADER.pack(MAGIC, values.code, indices.code, numel, count, length)
        sections = [
            on_device(header, sparse.values.device),
            indices.write(sparse),
            values.encode(sparse.values, seed),
        ]
        padding = length - sum(map(len, sections))
        return torch.cat([*sections, sections[0].new_zeros(padding)])

    def decode(self, message: Tensor) -> Sparse:
        """Read the message that uint8 ``message`` begins with, in whatever codings it was written.

        Returns:
            The message: its indices ascend within its ``numel``, or are None where it is dense;
            its values are never infinite. Indices may share the storage of ``message``.

        Raises:
            CodecError: the buffer is damaged or is not a message.
        """
        return self.decode_all([message])[0]

    def decode_all(self, messages: Sequence[Tensor]) -> list[Sparse]:
        """Read several messages; see :meth:`decode`.

        On a GPU, the host waits once for all headers, and once for all checks of indices.
        """
        headers = read_headers(messages)
        parts = [self._read(*each) for each in zip(messages, headers, strict=True)]
        listed = [(part.indices, part.numel) for part in parts if part.indices is not None]
        if not are_in_order(listed):
            numel = next(n for indices, n in listed if not in_order(indices, n))
            raise CodecError(f'the indices do not ascend, or lie outside the {numel} elements')
        return parts

    def _read(self, message: Tensor, header: Header) -> Sparse:
        """Read a message, without a look at the order of its indices."""
        numel, count = header.numel, header.count
        place = layout(header.values, header.indices, numel, count)
        if place.length != header.length or place.length > len(message):
            raise CodecError(
                f'{count} elements need {place.length} bytes, the header says {header.length}, '
                f'the message has {len(message)}'
            )
        indices = header.indices.read(message[HEADER.size : place.values], numel, count)
        values = header.values.decode(message[place.values : place.end], count)
        return Sparse(values, indices, numel)


class Layout(NamedTuple):
    """Where the values begin and end in a message, and its length with padding, in bytes."""

    values: int
    end: int
    length: int


def layout(values: ValueCoding, indices: IndexCoding, numel: int, count: int) -> Layout:
    """Return the sections of a message of ``count`` of ``numel`` elements, in bytes."""
    begin = HEADER.size + indices.capacity(numel, count)
    end = begin + values.capacity(count)
    return Layout(begin, end, -(-end // ALIGNMENT) * ALIGNMENT)


@dataclass(frozen=True)
class Header:
    """The fields of a header that was checked: known codings, and ``0 ≤ count ≤ numel``."""

    values: ValueCoding
    indices: IndexCoding
    numel: int
    count: int
    length: int


def on_device(header: bytes, device: torch.device) -> Tensor:
    """Return the bytes of a header as uint8, not to be written to.

    The first ones are kept, since most messages of a bucket have the same one, and copying it to a
    GPU makes the host wait. None is discarded for another: a stream might still read it.
    """
    found = KEPT.get((header, device))
    if found is None:
        found = torch.frombuffer(bytearray(header), dtype=torch.uint8).to(device)
        if len(KEPT) < MOST_KEPT:
            KEPT[header, device] = found
    return found


def read_headers(messages: Sequence[Tensor]) -> list[Header]:
    """Read and check the headers of uint8 messages of one device.

    Raises:
        CodecError: where one is invalid.
    """
    for message in messages:
        if message.dtype != torch.uint8 or message.dim() != 1 or len(message) < HEADER.size:
            raise CodecError(
                f'not a message: {message.dtype} {list(message.shape)}, '
                f'expected uint8 of at least {HEADER.size} bytes'
            )
    firsts = [message[: HEADER.size] for message in messages]
    if len(firsts) > 1 and firsts[0].device.type != 'cpu':
        firsts = [*torch.stack(firsts).cpu()]
    return [parse_header(first.cpu().numpy().tobytes()) for first in firsts]


def parse_header(raw: bytes) -> Header:
    """Read and check a header. Raises CodecError where it is invalid."""
    magic, value_code, index_code, numel, count, length = HEADER.unpack(raw)
    if magic != MAGIC:
        raise CodecError(f'not a message of this version: it begins with {magic!r}, not {MAGIC!r}')
    if value_code not in VALUE_CODES or index_code not in INDEX_CODES:
        raise CodecError(f'unknown codings {value_code} and {index_code} in a message')
    values, indices = VALUE_CODES[value_code], INDEX_CODES[index_code]
    try:
        indices.check(numel, count)
        possible = 0 <= count <= numel
    except ValueError:
        possible = False
    if not possible:
        raise CodecError(
            f'the header is invalid: {count} of {numel} elements, numbered with {indices.name}'
        )
    return Header(values, indices, numel, count, length)
