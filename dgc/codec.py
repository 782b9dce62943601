"""How a message is written on the wire: one buffer with a header, indices and values.

    offset  bytes  field
         0      4  magic, b'DGC' and the version of this format
         4      1  type of the values   (VALUES)
         5      1  type of the indices  (INDICES)
         8      8  numel: n, elements of the tensor
        16      8  count: k, elements kept
        24      4  scale: float32, by which the values are to be multiplied
        32    k·b  indices, then the values, little-endian

A receiver trusts none of it: whatever does not fit is refused with a CodecError.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dgc.sparse import Sparse

VERSION = 1
MAGIC = b'DGC' + bytes([VERSION])
HEADER = struct.Struct('<4sBB2xqqf4x')
ALIGNMENT = 8  # of a whole message, so that messages in one buffer can be viewed as any type

VALUES = {'fp32': torch.float32, 'fp16': torch.float16, 'bf16': torch.bfloat16}
INDICES = {'int64': torch.int64, 'int32': torch.int32}
FLOAT32_MAX = torch.finfo(torch.float32).max
TOP_EXPONENT = 14  # scaled values lie below 2^15, half of what float16 can hold


class CodecError(ValueError):
    """A buffer that this codec did not write, or that was damaged on the way."""


class Codec(ABC):
    """Writes a message of ``k`` elements of ``n`` as bytes, and reads it back."""

    @abstractmethod
    def capacity(self, numel: int, k: int) -> int:
        """Bytes that a message of up to ``k`` of ``numel`` elements fits into."""

    @abstractmethod
    def encode(self, sparse: Sparse) -> Tensor:
        """uint8 ``[at most capacity(n, k)]``. Indices are exact; values may be rounded."""

    @abstractmethod
    def decode(self, message: Tensor) -> Sparse:
        """The message in uint8 ``message``, which may be longer.

        Raises CodecError for a buffer that is foreign or damaged.
        """


class PlainCodec(Codec):
    """Indices and values as they are, in the types given.

    One power of two scales each message so that its largest value lies just below 2^15: float16
    then neither overflows nor loses a small value that would be selected again for ever. What is
    rounded off is the memory's to keep.

    values: 'fp32', 'fp16' or 'bf16'.
    indices: 'int64' or 'int32'.
    """

    def __init__(self, values: str = 'fp32', indices: str = 'int64') -> None:
        if values not in VALUES or indices not in INDICES:
            raise ValueError(
                f'values must be one of {sorted(VALUES)} and indices one of {sorted(INDICES)}, '
                f'got {values!r} and {indices!r}'
            )
        self.values = values
        self.indices = indices

    def capacity(self, numel: int, k: int) -> int:
        """``32 + k·(bytes of an index + bytes of a value)``, rounded up to 8."""
        self._check_width(numel)
        element = INDICES[self.indices].itemsize + VALUES[self.values].itemsize
        return -(-(HEADER.size + k * element) // ALIGNMENT) * ALIGNMENT

    def encode(self, sparse: Sparse) -> Tensor:
        """uint8 ``[capacity(n, k)]``."""
        if sparse.indices is None:
            raise ValueError('a dense message has no indices to write; all-reduce it instead')
        self._check_width(sparse.numel)
        scale = self._scale(sparse.values)
        values = (sparse.values / scale).to(VALUES[self.values])
        header = HEADER.pack(
            MAGIC,
            list(VALUES).index(self.values),
            list(INDICES).index(self.indices),
            sparse.numel,
            sparse.values.numel(),
            scale,
        )
        parts = [
            torch.frombuffer(bytearray(header), dtype=torch.uint8).to(values.device),
            sparse.indices.to(INDICES[self.indices]).view(torch.uint8),
            values.view(torch.uint8),
        ]
        padding = self.capacity(sparse.numel, sparse.values.numel()) - sum(map(len, parts))
        return torch.cat([*parts, values.new_zeros(padding, dtype=torch.uint8)])

    def decode(self, message: Tensor) -> Sparse:
        """See :meth:`Codec.decode`. The indices may share the message's storage."""
        value_type, index_type, numel, count, scale = read_header(message)
        end_of_indices = HEADER.size + count * index_type.itemsize
        end = end_of_indices + count * value_type.itemsize
        if end > message.numel():
            raise CodecError(f'{count} elements need {end} bytes, the message has {len(message)}')
        indices = typed(message[HEADER.size : end_of_indices], index_type).to(torch.int64)
        values = typed(message[end_of_indices:end], value_type).to(torch.float32) * scale
        values.clamp_(-FLOAT32_MAX, FLOAT32_MAX)  # rounding up may have passed it
        if count and not (0 <= int(indices.min()) and int(indices.max()) < numel):
            raise CodecError(f'an index lies outside the {numel} elements of the tensor')
        return Sparse(values, indices, numel)

    def _check_width(self, numel: int) -> None:
        if self.indices == 'int32' and numel > torch.iinfo(torch.int32).max:
            raise ValueError(
                f'{numel} elements cannot be numbered with int32: leave out int32_indices'
            )

    def _scale(self, values: Tensor) -> float:
        """The power of two to divide by; 1 where it would not help."""
        if self.values == 'fp32' or not values.numel():
            return 1.0
        largest = float(values.abs().max())
        if not math.isfinite(largest) or largest == 0:
            return 1.0
        # frexp's mantissa is below 1, so values / scale < 2^15. The floor keeps the scale and its
        # inverse normal float32 numbers.
        return 2.0 ** max(math.frexp(largest)[1] - TOP_EXPONENT - 1, -120)


def read_header(message: Tensor) -> tuple[torch.dtype, torch.dtype, int, int, float]:
    """Value type, index type, numel, count and scale; CodecError where they make no sense."""
    if message.dtype != torch.uint8 or message.dim() != 1 or message.numel() < HEADER.size:
        raise CodecError(
            f'not a message: {message.dtype} {list(message.shape)}, '
            f'expected uint8 of at least {HEADER.size} bytes'
        )
    raw = message[: HEADER.size].cpu().numpy().tobytes()
    magic, value_code, index_code, numel, count, scale = HEADER.unpack(raw)
    if magic != MAGIC:
        raise CodecError(f'not a message of this version: it begins with {magic!r}, not {MAGIC!r}')
    if value_code >= len(VALUES) or index_code >= len(INDICES):
        raise CodecError(f'unknown types {value_code} and {index_code} in a message')
    if not 0 <= count <= numel or not (math.isfinite(scale) and scale > 0):
        raise CodecError(f'{count} of {numel} elements at scale {scale} make no message')
    return (
        list(VALUES.values())[value_code],
        list(INDICES.values())[index_code],
        numel,
        count,
        scale,
    )


def typed(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 bytes viewed as ``dtype``; copied first where they do not lie on its boundary."""
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype)
