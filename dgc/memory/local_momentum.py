"""Momentum before a vote: signum."""

from __future__ import annotations

from torch import Tensor

from dgc.buckets import Bucket
from dgc.memory.base import Memory
from dgc.sparse import Sparse


class LocalMomentum(Memory):
    """Each rank's momentum, sent as a whole in every step (signum: Bernstein et al., 1810.05291).

        u ← m·u + g;  send u

    ``m`` is that of the optimizer, read from the bucket. The paper's u ← m·u + (1 - m)·g differs by
    a factor, which has no effect on a sign; without it the mean of the ranks' momenta is momentum
    SGD's, so that an uncompressed bucket trains like that. There is no residual: it is for
    exchanges such as MajorityVote, whose result is no estimate of what was sent.
    """

    buffers = ('momentum',)
    holds_momentum = True
    sends_gradients = False
    feeds_back = False

    def check(self, momentum: float, nesterov: bool) -> None:
        """It has no Nesterov form."""
        if nesterov:
            raise ValueError('LocalMomentum has no Nesterov form: set nesterov to False')

    def compensate(self, bucket: Bucket) -> Tensor:
        """``u ← m·u + g``; return ``u[n]``."""
        return bucket.buffers['momentum'].mul_(bucket.momentum).add_(bucket.contribution)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Do nothing: a momentum is not used up by being sent."""

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """Do nothing: errors are lost."""
