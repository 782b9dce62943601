"""Infinities and NaNs: detected before error feedback, and made known to every rank.

A rank whose gradient is not finite leaves its memory alone and sends, in place of the bucket's
message, one NaN at element 0. Every selection by magnitude counts a NaN as the largest and every
coding carries it, so all ranks see it in the result of the same exchange, without a further
collective (``Exchanged.non_finite``).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dgc import ops
from dgc.buckets import Bucket
from dgc.sparse import Payload, Sparse


class NonFiniteGradientError(ArithmeticError):
    """Some rank's gradient holds an infinity or a NaN; raised on all ranks at the same step.

    Attributes:
        rank: This rank where its own gradient is not finite; None on the others.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


def finite(*tensors: Tensor) -> bool:
    """Return whether every element of all tensors is finite. On a GPU this waits for the device."""
    return ops.kernels(tensors[0].device).finite(tensors)


def not_finite(bucket: Bucket) -> Iterator[str]:
    """Yield the names of the parameters whose gradients hold an infinity or a NaN."""
    for name, gradient in bucket.gradients():
        if not finite(gradient):
            yield name


def non_finite_message(bucket: Bucket, payload: Payload) -> Sparse:
    """Return the message that makes every rank's exchange non-finite: a NaN at element 0."""
    if payload is Payload.DENSE:
        values = bucket.total.zero_()
        values[0] = torch.nan
        return Sparse(values, None, bucket.numel)
    device = bucket.device
    first = torch.zeros(1, dtype=torch.int64, device=device)
    nan = torch.full((1,), torch.nan, dtype=torch.float32, device=device)
    return Sparse(nan, first, bucket.numel)
