"""The momentum of DGS, which makes waiting elements behave as larger batches."""

from __future__ import annotations

from torch import Tensor

from dgc.buckets import Bucket
from dgc.memory.base import Memory
from dgc.sparse import Sparse


class SAMomentum(Memory):
    """Sparsification-aware momentum (Yan, arXiv 1910.10929, section 4.3).

        u ← m·u + g;  send the top part of u;  where it was not sent, u ← u / m

    so that the next step's m·u leaves it whole: an element that waits behaves as if its batch were
    larger, and what is sent keeps its momentum. The law is not sent + residual = corrected, but

        m·u' = u where nothing was sent,  u' = u where it was.

    An uncompressed bucket sends all of u: momentum SGD. ``g`` is a gradient times its learning rate
    on a parameter server's worker, as in the paper.
    """

    buffers = ('momentum',)
    unsent = 'momentum'
    holds_momentum = True
    sends_gradients = False

    def check(self, momentum: float, nesterov: bool) -> None:
        """It divides by the momentum, and has no Nesterov form."""
        if not momentum > 0:
            raise ValueError(
                f'SAMomentum divides by the momentum, which is {momentum}: set the '
                "optimizer's momentum above 0, or use Residual"
            )
        if nesterov:
            raise ValueError('SAMomentum has no Nesterov form: set nesterov to False')

    def compensate(self, bucket: Bucket) -> Tensor:
        """``u ← m·u + g``; return ``u[n]``."""
        return bucket.buffers['momentum'].mul_(bucket.momentum).add_(bucket.contribution)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """``u ← u / m`` at every position that was not sent."""
        if sent.indices is None:
            return
        u = bucket.buffers['momentum']
        kept = u[sent.indices]
        u.div_(bucket.momentum)[sent.indices] = kept

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``u += error / m``, of which the next step's m·u makes ``error``."""
        errors = error._replace(values=error.values / bucket.momentum)
        errors.add_to(bucket.buffers['momentum'])
