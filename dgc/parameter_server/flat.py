"""A model's parameters in one flat tensor a bucket, and its other state in another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc.buckets import Bucket, part_of
from dgc.handshake import describe
from dgc.parameter_server.sections import to_bytes
from dgc.sparse import Sparse

ASPECTS = ('parameter names', 'parameter shapes', 'parameter types', 'the codec version')


@torch.no_grad()
def flatten(buckets: Sequence[Bucket]) -> list[Tensor]:
    """The parameters of each bucket as one float32 ``[n]``, of which they become views.

    So that what comes is added in one call, and in the same way on the server and on the worker.
    """
    flats = []
    for bucket in buckets:
        flat = torch.cat([member.parameter.reshape(-1) for member in bucket.members])
        for member in bucket.members:
            member.parameter.data = part_of(flat, member.offset, member.parameter)
        flats.append(flat)
    return flats


def subtract(flats: Sequence[Tensor], parts: Sequence[Sparse], factor: float) -> None:
    """``flat −= factor · part`` for each bucket, in place."""
    for values, part in zip(flats, parts, strict=True):
        part.add_to(values, alpha=-factor)


def follow(values: Tensor, answer: Sparse) -> None:
    """Take an answer in: what is sparse is added, what is dense is the model itself.

    By the same two calls on the server's record and on the worker's parameters, so that they stay
    the same bits, on whatever device each is.
    """
    there = answer.values.to(values.device)
    if answer.indices is None:
        values.copy_(there)
    else:
        answer._replace(values=there, indices=answer.indices.to(values.device)).add_to(values)


class Statistics:
    """A model's floating point buffers, BatchNorm's running statistics above all."""

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        self._tensors = [tensor for tensor in buffers if tensor.is_floating_point()]
        self.numel = sum(tensor.numel() for tensor in self._tensors)

    def read(self) -> Tensor:
        """A copy, float32 ``[numel]`` on the CPU."""
        parts = [tensor.detach().float().cpu().reshape(-1) for tensor in self._tensors]
        return torch.cat(parts) if parts else torch.empty(0)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Overwrite them."""
        parts = values.split([tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def aspects(
    named: list[tuple[str, Parameter]], buffers: int, configuration: str
) -> dict[str, bytes]:
    """What a worker and its server must agree on: a digest of each aspect.

    Frozen parameters never travel, so their values are among them. ``configuration``: any text.
    """
    frozen = [to_bytes(p.reshape(-1)) for _, p in named if not p.requires_grad]
    told = describe(named)
    texts = {aspect: told[aspect].encode() for aspect in ASPECTS} | {
        'the number of buffers': str(buffers).encode(),
        'the frozen parameters': b''.join(frozen),
        'the configuration': configuration.encode(),
    }
    return {aspect: hashlib.sha256(text).digest() for aspect, text in texts.items()}
