"""The momentum of Deep Gradient Compression, before sparsification."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.corrected import Corrected
from dgc.memory.base import Memory, clear, deferred, storage_type
from dgc.ops import Update, is_fused, is_native
from dgc.sparse import Sparse


class MomentumCorrection(Memory):
    """Momentum before sparsification, with factor masking (Lin et al., ICLR 2018, 3.2, 3.3).

    Momentum of a sparse sum would miss the discount of the steps in between, so each rank keeps its
    own, and accumulates the velocity instead of the gradient:

        u ← m·u + g,  v ← v + u        Nesterov:  u ← m·(u + g),  v ← v + u + g

    ``m`` and Nesterov are those of the optimizer, read from the bucket. Where an element is sent,
    v ← 0, and u ← 0 too: momentum gathered while it waited would push it in a stale direction.
    An element that is sent every few steps thus gathers little momentum: with a constant gradient,
    sent every s steps, it moves by mean_{j=1..s}(1 - m^j) of the step of momentum SGD.
    An uncompressed bucket sends all of v and masks nothing: the mean of the ranks' momenta is the
    momentum of the mean, so this is momentum SGD, and it flushes the residual of a sparse phase.

    Args:
        momentum_masking: Zero ``u`` at the positions that were sent.
        dtype: Of u and v: 'float32', 8 bytes per element, or 'bfloat16', 4 (``dgc.memory.base``
            says what is conserved then).

    Raises:
        ValueError: For another type.
    """

    buffers = ('momentum', 'velocity')
    meaning = 'MomentumCorrection'
    unsent = 'velocity'
    holds_momentum = True
    sends_gradients = False
    continues = True

    def __init__(self, momentum_masking: bool = True, dtype: str | torch.dtype = 'float32') -> None:
        self.momentum_masking = momentum_masking
        self.dtype = storage_type(dtype)

    def compensate(self, bucket: Bucket) -> Tensor:
        """Momentum, then accumulation; return the accumulated velocity ``v[n]``."""
        wide = self.widened(bucket)
        u, v = wide['momentum'], wide['velocity']
        for begins, (of_u, of_v, gradient) in self.parts(bucket, u, v, bucket.contribution):
            (self._accumulate if begins else self._continue)(bucket, of_u, of_v, gradient)
        self.keep(bucket, wide)
        return v

    def _continue(self, bucket: Bucket, u: Tensor, v: Tensor, part: Tensor) -> None:
        """Update u and v, which have m·u already, by a further part of a gradient."""
        factor = bucket.momentum if bucket.nesterov else 1.0
        u.add_(part, alpha=factor)
        v.add_(part, alpha=1 + factor if bucket.nesterov else 1.0)

    def _accumulate(self, bucket: Bucket, u: Tensor, v: Tensor, gradient: Tensor) -> None:
        """Update u and v of some elements by the formulas of the class."""
        if bucket.nesterov:
            u.add_(gradient).mul_(bucket.momentum)
            v.add_(u).add_(gradient)
        else:
            u.mul_(bucket.momentum).add_(gradient)
            v.add_(u)

    def renewed(self, bucket: Bucket) -> Sequence[str]:
        """Both, where the C++ kernel adds the gradient."""
        renews = bucket.renews and is_native(bucket.device) and self._is_fused(bucket)
        return ('velocity', 'momentum') if renews else ()

    def _is_fused(self, bucket: Bucket) -> bool:
        """Return whether a kernel adds the gradient of this step."""
        return not bucket.continued and is_fused(bucket.contribution_dtype, bucket.device)

    def corrected(self, bucket: Bucket) -> Corrected:
        """``compensate``, fused with the compressor's search."""
        if not self._is_fused(bucket):
            return super().corrected(bucket)
        u, v = bucket.buffers['momentum'], bucket.buffers['velocity']
        into = bucket.renew(self.renewed(bucket))
        pieces, seed = bucket.contribution_pieces, self.rounding(bucket)
        update = Update(pieces, u, bucket.momentum, bucket.nesterov, into, seed)
        return deferred(bucket, v, update)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Zero the velocity at what was sent and, where sparse and masked, the momentum."""
        clear(bucket.buffers['velocity'], sent)
        if self.momentum_masking and not sent.is_dense:
            clear(bucket.buffers['momentum'], sent)

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``v += error``; the momentum needs no correction."""
        self.add(bucket, 'velocity', error)
