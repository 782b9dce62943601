"""Adam's first moment before sparsification."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from dgc.buckets import Bucket
from dgc.memory.base import Memory, clear, first_moment_of, refuse_momentum
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

    Raises:
        ValueError: For a beta1 outside [0, 1).
    """

    buffers = ('momentum', 'velocity')
    unsent = 'velocity'

    def __init__(self, beta1: float = 0.9, momentum_masking: bool = False) -> None:
        if not 0 <= beta1 < 1:
            raise ValueError(f'beta1 must be at least 0 and below 1, got {beta1}')
        self.beta1, self.momentum_masking = beta1, momentum_masking

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
        moment, velocity = bucket.buffers['momentum'], bucket.buffers['velocity']
        moment.mul_(self.beta1).add_(bucket.contribution, alpha=1 - self.beta1)
        return velocity.add_(moment)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Zero the velocity at what was sent and, where sparse and masked, the moment."""
        clear(bucket.buffers['velocity'], sent)
        if self.momentum_masking and not sent.is_dense:
            clear(bucket.buffers['momentum'], sent)

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``v += error``."""
        error.add_to(bucket.buffers['velocity'])
