"""Bytes seen as other types, and what is said of bytes that make no sense."""

from __future__ import annotations

import torch
from torch import Tensor


class CodecError(ValueError):
    """A buffer that this codec did not write, or that was damaged on the way."""


def typed(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 bytes viewed as ``dtype``; copied first where they do not lie on its boundary."""
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype)


def pack(fields: Tensor, bits: int) -> Tensor:
    """uint8 ``[m]`` of ``bits`` (1, 2, 4 or 8) bits each, as uint8 ``[⌈m·bits/8⌉]``.

    The first field lies in the lowest bits of the first byte; what is missing at the end is zero.
    """
    per_byte = 8 // bits
    whole = torch.nn.functional.pad(fields, (0, -len(fields) % per_byte))
    return (whole.view(-1, per_byte) << shifts(bits, fields.device)).sum(1, dtype=torch.uint8)


def unpack(raw: Tensor, bits: int) -> Tensor:
    """The inverse of :func:`pack`: uint8 ``[len(raw)·8/bits]``, with the zeros at the end."""
    fields = raw.unsqueeze(1) >> shifts(bits, raw.device)
    return fields.bitwise_and_(2**bits - 1).flatten()


def shifts(bits: int, device: torch.device) -> Tensor:
    """Where the fields of ``bits`` bits begin in a byte: uint8 ``[8/bits]``."""
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
