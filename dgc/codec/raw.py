"""Bytes viewed as other types, fields of a few bits, and the error for invalid bytes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


class CodecError(ValueError):
    """A buffer that is not a message of this codec, or was damaged in transit."""


def typed(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uint8 bytes viewed as ``dtype``; copied first where they are not aligned for it."""
    if raw.data_ptr() % dtype.itemsize or raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype)


def pack(fields: Tensor, bits: int) -> Tensor:
    """Pack uint8 ``[m]``, each below 2^bits, into uint8 ``[⌈m·bits/8⌉]``; bits is 1, 2, 4 or 8.

    The first field is in the lowest bits of the first byte; unused bits at the end are zero.
    """
    if bits == 1 and fields.device.type == 'cpu':  # numpy takes a fortieth of the time
        return torch.from_numpy(np.packbits(fields.numpy(), bitorder='little'))
    per_byte = 8 // bits
    whole = torch.nn.functional.pad(fields.contiguous(), (0, -len(fields) % per_byte))
    # The fields of a byte as one word, in which field j begins at bit 8j and goes to bit j·bits.
    words = typed(whole, WORDS[per_byte])
    packed = words
    for place in range(1, per_byte):
        packed = packed | words >> place * (8 - bits)
    return (packed & 0xFF).to(torch.uint8)


def unpack(raw: Tensor, bits: int) -> Tensor:
    """Invert :func:`pack`; return uint8 ``[len(raw)·8/bits]``, unused fields included."""
    if bits == 1 and raw.device.type == 'cpu':
        return torch.from_numpy(np.unpackbits(raw.numpy(), bitorder='little'))
    fields = raw.unsqueeze(1) >> shifts(bits, raw.device)
    return fields.bitwise_and_(2**bits - 1).flatten()


def shifts(bits: int, device: torch.device) -> Tensor:
    """Return the bit at which each field of ``bits`` bits begins in a byte: uint8 ``[8/bits]``."""
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
