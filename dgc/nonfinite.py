"""Infinities and NaNs: seen before anything is kept back, and known to every worker.

A worker whose gradient is not finite leaves its memory alone and sends, in the bucket's place, one
NaN at element 0. Every exchange keeps the largest magnitudes, and a NaN counts as the largest, so
it arrives everywhere: each worker reads one element of each sum to know that all must stop.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dgc import ops
from dgc.buckets import Bucket
from dgc.sparse import Sparse


class NonFiniteGradientError(ArithmeticError):
    """Some worker's gradient holds an infinity or a NaN; raised on all workers at the same step.

    rank: this worker's rank where it is one of those; None on the others.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


def finite(*tensors: Tensor) -> bool:
    """Whether no element of any of them is infinite or NaN."""
    return ops.kernels(tensors[0].device).finite(tensors)


def not_finite(bucket: Bucket) -> Iterator[str]:
    """Names of the parameters whose gradients hold an infinity or a NaN."""
    for name, gradient in bucket.gradients():
        if not finite(gradient):
            yield name


def poison(bucket: Bucket, dense: bool) -> Sparse:
    """The message that stops every worker."""
    if dense:
        values = bucket.total.zero_()
        values[0] = torch.nan
        return Sparse(values, None, bucket.numel)
    device = bucket.device
    first = torch.zeros(1, dtype=torch.int64, device=device)
    return Sparse(torch.full((1,), torch.nan, device=device), first, bucket.numel)
