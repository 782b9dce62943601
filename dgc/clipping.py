"""Local gradient clipping, with a limit that applies to the mean gradient of P ranks.

Compression needs clipping before the exchange, where each rank has only its own gradient. The mean
of P independent gradients has 1/√P times the norm of one of them, so clipping each rank's gradient
to ``limit·√P`` clips the mean to about ``limit`` (Deep Gradient Compression, section 3.2; there the
local gradients already include the factor 1/P).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.engines import LocalEngine
from dgc.engines.base import Engine


class Clipping(ABC):
    """Bounds the local gradients of a step, before error feedback.

    Args:
        limit: The largest value or norm, in units of the mean gradient; see the subclasses.
        dense_after_mean: Whether a bucket whose schedule has it uncompressed is clipped after the
            exchange, as the release of Deep Gradient Compression does: its mean, to ``limit``.

    Attributes:
        needs_all: Whether ``clip`` needs all gradients of the step at once, so that no exchange can
            start during the backward pass.

    Raises:
        ValueError: For a limit that is not above 0; for ``dense_after_mean`` where ``needs_all``,
            since some buckets would be clipped before the mean and others after it.
    """

    needs_all = False

    def __init__(self, limit: float, dense_after_mean: bool = False) -> None:
        if not limit > 0:
            raise ValueError(f'a clipping limit must be above 0, got {limit}')
        if dense_after_mean and self.needs_all:
            raise ValueError(
                f'{type(self).__name__} clips all gradients together, before the exchange: leave '
                'out dense_after_mean, or use ClipByNorm or ClipByValue'
            )
        self.limit = limit
        self.dense_after_mean = dense_after_mean

    def waits(self, bucket: Bucket) -> bool:
        """Return whether a bucket is clipped after the exchange in this step."""
        return self.dense_after_mean and bucket.density is None

    def clip_mean(self, bucket: Bucket) -> None:
        """Clip the result of a bucket in place, alike on all ranks."""
        self.clip([bucket], LocalEngine())

    @abstractmethod
    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """Clip gradients in place.

        Args:
            buckets: One bucket, or all buckets of the step where ``needs_all``.
            engine: Provides the world size and, where needed, collectives.
        """


class ClipByValue(Clipping):
    """Clamps every element to ``[-limit, limit]``."""

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """Clamp every element, without communication."""
        for bucket in buckets:
            for piece in bucket.pieces:
                piece.clamp_(-self.limit, self.limit)


class ClipByDeviation(Clipping):
    """Clamps every element to ``limit`` standard deviations of its parameter's local gradient.

    TernGrad (Wen et al., arXiv 1705.07878, section 5): without it one outlier is the scale of all
    elements of a block. Unlike the other limits, this one is a number of deviations, the same for
    any number of ranks; it is 2.5 in the paper. Deviations are from 0, about which gradients lie.
    """

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """Clamp by each parameter's own deviation, without communication."""
        for bucket in buckets:
            for _, gradient in bucket.gradients():
                bound = self.limit * norm([gradient]) / math.sqrt(max(gradient.numel(), 1))
                bound = bound.to(gradient.dtype)
                gradient.clamp_(-bound, bound)


class ClipByNorm(Clipping):
    """Scales each parameter's local gradient to a norm of at most ``limit·√P``."""

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """Scale each parameter's gradient by its own norm, without communication."""
        for bucket in buckets:
            for _, gradient in bucket.gradients():
                scale([gradient], self.limit * math.sqrt(engine.size), norm([gradient]))


class ClipByModelNorm(Clipping):
    """Scales this rank's gradient of the whole model to a norm of at most ``limit·√P``."""

    needs_all = True

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """Scale all gradients by their common norm, without communication."""
        gradients = [piece for bucket in buckets for piece in bucket.pieces]
        scale(gradients, self.limit * math.sqrt(engine.size), norm(gradients))


class ClipByGlobalNorm(Clipping):
    """Scales all ranks' gradients by one factor, to a mean gradient of norm at most ``limit``.

    The norm of the mean is estimated as √(Σ‖g‖²) / P, which holds where the ranks' gradients are
    independent.
    """

    needs_all = True

    def clip(self, buckets: Sequence[Bucket], engine: Engine) -> None:
        """Scale all gradients by the ranks' common norm: one all-reduce of one number."""
        gradients = [piece for bucket in buckets for piece in bucket.pieces]
        squared = engine.all_reduce(norm(gradients).square().reshape(1))
        scale(gradients, self.limit, squared[0].sqrt() / engine.size)


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm over all elements of all tensors, a float64 scalar."""
    for dtype in (torch.float32, torch.float64):  # float64 only where squares overflow float32
        norms = [torch.linalg.vector_norm(tensor, dtype=dtype) for tensor in tensors]
        size = torch.stack(norms).norm().double()
        if size.isfinite():
            break
    return size


def scale(tensors: Sequence[Tensor], limit: float, size: Tensor) -> None:
    """Scale tensors in place, so that their norm becomes at most ``limit``.

    Args:
        tensors: What is scaled.
        limit: The largest norm.
        size: Their norm, a scalar. Where it is not finite, the tensors are not changed: the
            non-finite elements are detected and reported later (``dgc/nonfinite.py``).
    """
    # A tensor operation instead of an `if`, since reading `size` would wait for the GPU.
    factor = torch.where(size.isfinite(), torch.clamp(limit / (size + 1e-6), max=1.0), 1.0)
    for tensor in tensors:
        tensor.mul_(factor)
