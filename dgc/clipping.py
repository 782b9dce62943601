"""Gradient clipping that means the same however many workers share the gradient.

The gradients of workers are summed and divided by their number P only after the exchange, so a
worker clips its own, larger, gradient. Independent gradients have a mean whose norm is that of
one of them divided by √P: clipping each at ``limit·√P`` is clipping the mean at about ``limit``
(Deep Gradient Compression, section 3.2, whose gradients carry the 1/P already).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.engines.base import Engine


class Clipping(ABC):
    """Bounds the gradients of one step, before anything is kept back.

    needs_all: wants every gradient of the step at once, so that no exchange can start during the
        backward pass.
    """

    needs_all = False

    def __init__(self, limit: float) -> None:
        if not limit > 0:
            raise ValueError(f'a clipping limit must be above 0, got {limit}')
        self.limit = limit

    @abstractmethod
    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """Clip the gradients of ``buckets`` in place: one bucket, or all where needs_all."""


class ClipByValue(Clipping):
    """Every element to [-limit, limit]."""

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """No communication."""
        for bucket in buckets:
            for piece in bucket.pieces:
                piece.clamp_(-self.limit, self.limit)


class ClipByNorm(Clipping):
    """Every parameter's gradient to a norm of ``limit·√P``."""

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """No communication."""
        for bucket in buckets:
            for _, gradient in bucket.gradients():
                scale([gradient], self.limit * math.sqrt(engine.size), norm([gradient]))


class ClipByModelNorm(Clipping):
    """This worker's whole gradient to a norm of ``limit·√P``."""

    needs_all = True

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """No communication."""
        gradients = [piece for bucket in buckets for piece in bucket.pieces]
        scale(gradients, self.limit * math.sqrt(engine.size), norm(gradients))


class ClipByGlobalNorm(Clipping):
    """All workers' gradients by one factor, so that their mean has a norm of about ``limit``."""

    needs_all = True

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """One all-reduce of one number: the squared norm. √(Σ‖g‖²) / P is the mean's norm where
        the workers' gradients are independent."""
        gradients = [piece for bucket in buckets for piece in bucket.pieces]
        squared = engine.all_reduce(norm(gradients).square().reshape(1))
        scale(gradients, self.limit, squared[0].sqrt() / engine.size)


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all elements together, a float64 scalar."""
    for dtype in (torch.float32, torch.float64):  # the second, where squares pass float32's range
        norms = [torch.linalg.vector_norm(tensor, dtype=dtype) for tensor in tensors]
        size = torch.stack(norms).norm().double()
        if size.isfinite():
            break
    return size


def scale(tensors: Sequence[Tensor], limit: float, size: Tensor) -> None:
    """Scale ``tensors`` in place so that a norm of ``size`` becomes at most ``limit``.

    A norm that is not finite scales nothing: its worker is about to be named and stopped.
    """
    factor = torch.where(size.isfinite(), torch.clamp(limit / (size + 1e-6), max=1.0), 1.0)
    for tensor in tensors:
        tensor.mul_(factor)
