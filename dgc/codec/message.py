"""A message is one buffer: a header, the indices, the values. All of it is little-endian.

    offset  bytes  field
         0      4  magic, b'DGC' and the version of this format
         4      1  coding of the values   (VALUES)
         5      1  coding of the indices  (INDICES)
         6      2  zero
         8      8  numel: n, elements of the tensor
        16      8  count: k, elements kept
        24      8  length: bytes of the whole message, a multiple of 8
        32      …  indices, ascending
         …      …  values, in the order of the indices
         …    0-7  zeros

    indices  bytes of k of n             written
    int64    8k                          as they are
    int32    4k                          as they are; n up to 2^31 - 1
    packed   (k·(l+1) + (n >> l)) / 8    elias_fano.py, also for l

    values   bytes of k                  written (values.py)
    fp32     4k                          as they are
    fp16     4 + 2k                      a float32 scale, then the values divided by it
    bf16     4 + 2k                      the same
    int8     4·⌈k/256⌉ + k               a float32 a block of 256 values, then the numbers
    int4     4·⌈k/128⌉ + k/2             a float32 a block of 128 values, then the numbers

Sections follow each other without gaps, so the values may begin at any byte. Each one's length is
known from n and k; ``length`` says it again, for those who only carry messages, and so that most
damage to a header shows. A receiver trusts none of it: whatever does not fit is refused with a
CodecError, before anything is allocated that is larger than a multiple of the bytes that are there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dgc.codec.indices import INDICES, IndexCoding, in_order
from dgc.codec.raw import CodecError
from dgc.codec.values import VALUES, ValueCoding
from dgc.sparse import Sparse

VERSION = 2
MAGIC = b'DGC' + bytes([VERSION])
HEADER = struct.Struct('<4sBB2xqqq')
ALIGNMENT = 8  # of a whole message, so that messages in one buffer can be viewed as any type

VALUE_CODES = {coding.code: coding for coding in VALUES.values()}
INDEX_CODES = {coding.code: coding for coding in INDICES.values()}


class Codec:
    """Writes a message of ``k`` elements of ``n`` as bytes, and reads it back.

    Indices are exact, values rounded as their coding does.

    values: 'fp32', 'fp16', 'bf16', 'int8' or 'int4'.
    indices: 'int64', 'int32' or 'packed'.
    """

    def __init__(self, values: str = 'fp32', indices: str = 'int64') -> None:
        if values not in VALUES or indices not in INDICES:
            raise ValueError(
                f'values must be one of {list(VALUES)} and indices one of {list(INDICES)}, '
                f'got {values!r} and {indices!r}'
            )
        self.values = values
        self.indices = indices

    def capacity(self, numel: int, k: int) -> int:
        """Bytes of a message of ``k`` of ``numel`` elements, in which one of fewer fits too.

        Raises ValueError where the indices' coding cannot number so many elements.
        """
        coding = INDICES[self.indices]
        if numel > coding.limit:
            raise ValueError(
                f'{numel} elements cannot be numbered with {self.indices}: '
                "choose indices='packed' or 'int64'"
            )
        return layout(VALUES[self.values], coding, numel, k).length

    def encode(self, sparse: Sparse) -> Tensor:
        """uint8 ``[capacity(n, k)]``, on the device of the values.

        Raises ValueError for a dense message, and for indices that do not ascend within 0 … n-1.
        """
        if sparse.indices is None:
            raise ValueError('a dense message has no indices to write; all-reduce it instead')
        values, indices = VALUES[self.values], INDICES[self.indices]
        numel, count = sparse.numel, len(sparse.values)
        length = self.capacity(numel, count)
        if not in_order(sparse.indices, numel):
            raise ValueError(
                f'the indices of a message must ascend, each once, within its {numel} elements: '
                'sort them, and the values with them'
            )
        header = HEADER.pack(MAGIC, values.code, indices.code, numel, count, length)
        parts = [
            torch.frombuffer(bytearray(header), dtype=torch.uint8).to(sparse.values.device),
            indices.encode(sparse.indices, numel),
            values.encode(sparse.values),
        ]
        padding = length - sum(map(len, parts))
        return torch.cat([*parts, parts[0].new_zeros(padding)])

    def decode(self, message: Tensor) -> Sparse:
        """The message that uint8 ``message`` begins with, whatever codings it was written in.

        The result is ordered, inside its ``numel`` and never infinite. Indices may share the
        message's storage. Raises CodecError for a buffer that is foreign or damaged.
        """
        header = read_header(message)
        numel, count = header.numel, header.count
        place = layout(header.values, header.indices, numel, count)
        if place.length != header.length or place.length > len(message):
            raise CodecError(
                f'{count} elements need {place.length} bytes, the header says {header.length}, '
                f'the message has {len(message)}'
            )
        section = message[HEADER.size : place.values]
        indices = header.indices.decode(section, numel, count)
        if not in_order(indices, numel):
            raise CodecError(f'the indices do not ascend, or lie outside the {numel} elements')
        values = header.values.decode(message[place.values : place.end], count)
        return Sparse(values, indices, numel)


class Layout(NamedTuple):
    """Where the values begin and end in a message, and its length with the zeros behind them."""

    values: int
    end: int
    length: int


def layout(values: ValueCoding, indices: IndexCoding, numel: int, count: int) -> Layout:
    """The places of a message's parts, in bytes from its beginning."""
    begin = HEADER.size + indices.capacity(numel, count)
    end = begin + values.capacity(count)
    return Layout(begin, end, -(-end // ALIGNMENT) * ALIGNMENT)


@dataclass(frozen=True)
class Header:
    """What a header says, of codings that there are, with ``0 ≤ count ≤ numel``."""

    values: ValueCoding
    indices: IndexCoding
    numel: int
    count: int
    length: int


def read_header(message: Tensor) -> Header:
    """The header of uint8 ``message``. Raises CodecError where it makes no sense."""
    if message.dtype != torch.uint8 or message.dim() != 1 or len(message) < HEADER.size:
        raise CodecError(
            f'not a message: {message.dtype} {list(message.shape)}, '
            f'expected uint8 of at least {HEADER.size} bytes'
        )
    raw = message[: HEADER.size].cpu().numpy().tobytes()
    magic, value_code, index_code, numel, count, length = HEADER.unpack(raw)
    if magic != MAGIC:
        raise CodecError(f'not a message of this version: it begins with {magic!r}, not {MAGIC!r}')
    if value_code not in VALUE_CODES or index_code not in INDEX_CODES:
        raise CodecError(f'unknown codings {value_code} and {index_code} in a message')
    values, indices = VALUE_CODES[value_code], INDEX_CODES[index_code]
    if not 0 <= count <= numel <= indices.limit:
        raise CodecError(f'{count} of {numel} elements, numbered with {indices.name}: no message')
    return Header(values, indices, numel, count, length)
