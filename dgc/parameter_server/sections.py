"""The body of an update and of its answer: one section for each bucket, in the buckets' order.

offset  bytes  field
     0      4  form: 0 dense, 1 sparse
     4      4  zero
     8      8  length: bytes of the section's data
    16      …  dense: all n elements as float32; sparse: a message of the codec
     …    0-7  zeros, up to a multiple of 8
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.codec import Codec
from dgc.parameter_server.protocol import HEADER as MESSAGE_HEADER
from dgc.parameter_server.protocol import MOST_TEXT, WELCOME_NUMBERS, ProtocolError
from dgc.sparse import Sparse

HEADER = struct.Struct('<I4xQ')
ALIGNMENT = 8
FLOAT32 = 4  # bytes
DENSE, SPARSE = 0, 1


def is_cheaper_dense(numel: int, k: int, codec: Codec) -> bool:
    """Whether ``k`` of ``numel`` elements take no fewer bytes than all of them, without indices."""
    return codec.capacity(numel, k) >= FLOAT32 * numel


def write(part: Sparse, codec: Codec) -> bytes:
    """One section."""
    form, data = DENSE, part.values
    if part.indices is not None:
        form, data = SPARSE, codec.encode(part)
    raw = to_bytes(data)
    return HEADER.pack(form, len(raw)) + raw + bytes(-len(raw) % ALIGNMENT)


def read(body: bytes | memoryview, numels: Sequence[int], codec: Codec) -> list[Sparse]:
    """The parts of a body, for buckets of these lengths. Raises ProtocolError, or CodecError.

    codec: any: a message says in which codings it was written.
    """
    parts, place, body = [], 0, memoryview(body)
    for numel in numels:
        if place + HEADER.size > len(body):
            raise ProtocolError(f'an update of {len(body)} bytes has too few sections')
        form, length = HEADER.unpack_from(body, place)
        place += HEADER.size
        if length > len(body) - place:
            raise ProtocolError(f'a section of {length} bytes is longer than its message')
        part = read_data(body[place : place + length], form, codec)
        if part.numel != numel:
            raise ProtocolError(f'a section for {part.numel} elements, where {numel} are trained')
        parts.append(part)
        place += length + -length % ALIGNMENT
    if place != len(body):
        raise ProtocolError(f'an update of {len(body)} bytes goes on after its last section')
    return parts


def read_data(data: memoryview, form: int, codec: Codec) -> Sparse:
    """One section's part."""
    if form == SPARSE:
        return codec.decode(from_bytes(data, torch.uint8))
    if form != DENSE or len(data) % FLOAT32:
        raise ProtocolError(f'a section of form {form} and {len(data)} bytes')
    values = from_bytes(data, torch.float32)
    return Sparse(values, None, len(values))


def to_bytes(tensor: Tensor) -> bytes:
    """The elements of a flat tensor."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(data: bytes | memoryview, dtype: torch.dtype) -> Tensor:
    """A flat tensor of ``dtype``, in storage of its own. Raises ProtocolError for a part of one."""
    if len(data) % dtype.itemsize:
        raise ProtocolError(f'{len(data)} bytes are no whole number of {dtype}')
    return torch.frombuffer(bytearray(data), dtype=dtype) if len(data) else torch.empty(0).to(dtype)


def most_bytes(numels: Sequence[int], buffers: int, aspects: int) -> int:
    """What no message between a server and a worker of such a model is longer than.

    numels: of the buckets; buffers: elements of the model's buffers; aspects: of the handshake.
    """
    sections = sum(HEADER.size + FLOAT32 * numel + ALIGNMENT for numel in numels)
    others = WELCOME_NUMBERS.size + FLOAT32 * buffers + 32 * aspects + MOST_TEXT
    return MESSAGE_HEADER.size + sections + others
