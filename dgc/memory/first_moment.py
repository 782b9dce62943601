"""Adam's first moment before sparsification."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from dgc.buckets import Bucket
from dgc.memory.base import Memory, clear, first_moment_of, refuse_momentum, storage_type
from dgc.sparse import Sparse


class FirstMoment(Memory):
    """Adam's first moment on each rank, accumulated until it is sent: momentum correction for Adam.

        u ← β1·u + (1 - β1)·g,  v ← v + u,  send the largest of v;  where sent, v ← 0

    The optimizer applies what arrives without another first moment, so its own beta1 must be 0; its
    second moment is then that of the means of v. An uncompressed bucket sends all of v, which is u:
    the mean of the ranks' moments. With the masking of Deep Gradient Compression u ← 0 too where a
    sparse message was sent.

    Args:
        beta1: β1.
        momentum_masking: Zero ``u`` at the positions that were sent.
        dtype: Of u and v: 'float32', 8 bytes per element, or 'bfloat16', 4 (``dgc.memory.base``
            says what is conserved then).

    Raises:
        ValueError: For a beta1 outside [0, 1), or another type.
    """

    buffers = ('momentum', 'velocity')
    unsent = 'velocity'
    sends_gradients = False
    continues = True

    def __init__(
        self,
        beta1: float = 0.9,
        momentum_masking: bool = False,
        dtype: str | torch.dtype = 'float32',
    ) -> None:
        if not 0 <= beta1 < 1:
            raise ValueError(f'beta1 must be at least 0 and below 1, got {beta1}')
        self.beta1, self.momentum_masking = beta1, momentum_masking
        self.dtype = storage_type(dtype)

    def check(self, momentum: float, nesterov: bool) -> None:
        """The momentum is this memory's ``beta1``."""
        refuse_momentum('FirstMoment', f'beta1={self.beta1}', momentum)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """The optimizer must not have a first moment as well."""
        name, beta1 = first_moment_of(optimizer)
        if beta1:
            raise ValueError(
                f'FirstMoment has the first moment (beta1={self.beta1}) and {name} would apply '
                f"another (beta1={beta1}): set the optimizer's betas to (0.0, …)"
            )

    def compensate(self, bucket: Bucket) -> Tensor:
        """``u ← β1·u + (1 - β1)·g,  v ← v + u``; return ``v[n]``."""
        wide = self.widened(bucket)
        u, v = wide['momentum'], wide['velocity']
        for begins, (of_u, of_v, gradient) in self.parts(bucket, u, v, bucket.contribution):
            self._accumulate(of_u, of_v, gradient, begins)
        self.keep(bucket, wide)
        return v

    def _accumulate(self, u: Tensor, v: Tensor, gradient: Tensor, begins: bool) -> None:
        """Update u and v of some elements by a gradient, or by a further part of one.

        Where a part is not the first, u and v have β1·u already, and the parts that came before.
        """
        if begins:
            u.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
            v.add_(u)
        else:
            u.add_(gradient, alpha=1 - self.beta1)
            v.add_(gradient, alpha=1 - self.beta1)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Zero the velocity at what was sent and, where sparse and masked, the moment."""
        clear(bucket.buffers['velocity'], sent)
        if self.momentum_masking and not sent.is_dense:
            clear(bucket.buffers['momentum'], sent)

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``v += error``."""
        self.add(bucket, 'velocity', error)
