"""Momentum correction whose uncompressed phase has the momentum of the mean, as in the release."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from dgc.buckets import Bucket
from dgc.exchanges.base import Exchanged
from dgc.memory.momentum_correction import MomentumCorrection
from dgc.sparse import Sparse


class MeanMomentum(MomentumCorrection):
    """MomentumCorrection, but all ranks go on with the mean's momentum after an uncompressed step.

    That is what the release of Deep Gradient Compression does while a bucket's schedule has it
    uncompressed (``wm5o``). Each rank sends its velocity as ever, and their mean r is the result.
    Then each rank's momentum becomes that of the mean gradient ḡ:

        u ← m·u + ḡ = r        Nesterov:  u ← m·(u + ḡ) = m·(u + r) / (1 + m)

    The results are those of MomentumCorrection, since the mean of momenta is the momentum of the
    mean. They differ once the bucket is compressed: all ranks begin with the same momentum. A step
    that also sends what is left of a sparse phase leaves each rank its own, and so does a bucket
    that is sent dense only since that is shorter.

    With ``dense_after_mean`` of a clipping, ḡ is clipped before the momentum, as in the release; in
    a step that also sends what is left of a sparse phase, their sum is.
    """

    needs_mean = True
    continues = False

    def __init__(self, momentum_masking: bool = True, dtype: str = 'float32') -> None:
        super().__init__(momentum_masking, dtype)
        self._following: weakref.WeakSet[Bucket] = weakref.WeakSet()  # from compensate to update

    def compensate(self, bucket: Bucket) -> Tensor:
        """Add the next velocity to ``v[n]`` and return it; u is as before where it is to follow."""
        self._following.discard(bucket)
        if bucket.density is not None or bool(bucket.buffers['velocity'].any()):
            return super().compensate(bucket)
        wide, gradient = self.widened(bucket), bucket.contribution
        velocity = wide['velocity'].add_(wide['momentum'])
        if bucket.nesterov:
            velocity.add_(gradient)
        velocity.mul_(bucket.momentum).add_(gradient)
        self.keep(bucket, wide)
        self._following.add(bucket)
        return velocity

    def _is_fused(self, bucket: Bucket) -> bool:
        """No kernel leaves the momentum as it is."""
        return bucket.density is not None and super()._is_fused(bucket)

    def update(
        self, bucket: Bucket, selected: Sparse, exchanged: Exchanged, result: Sequence[Tensor]
    ) -> None:
        """Compute the residual, and the momentum where it follows the mean."""
        super().update(bucket, selected, exchanged, result)
        if bucket not in self._following:
            return
        self._following.discard(bucket)
        wide, m = self.widened(bucket), bucket.momentum
        for momentum, mean in beside(wide['momentum'], result):
            if bucket.nesterov:
                momentum.add_(mean).mul_(m / (1 + m))
            else:
                momentum.copy_(mean)
        self.keep(bucket, wide)

    def check_clipped_mean(self) -> None:
        """``clip_mean`` finds the mean gradient in the result, since all ranks have the same u."""

    def clip_mean(self, bucket: Bucket, clip: Callable[[Bucket], None]) -> None:
        """Clip ḡ in the result m·u + ḡ (Nesterov: m·u + (1 + m)·ḡ)."""
        if bucket not in self._following:
            clip(bucket)
            return
        m = bucket.momentum
        times = 1 + m if bucket.nesterov else 1.0
        momentum = bucket.buffers['momentum'].float()
        for u, piece in beside(momentum, bucket.pieces):
            piece.add_(u, alpha=-m).div_(times)
        clip(bucket)
        for u, piece in beside(momentum, bucket.pieces):
            piece.mul_(times).add_(u, alpha=m)


def beside(flat: Tensor, pieces: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each of some flat tensors with its part of ``flat[n]``, which is as long as all."""
    return zip(flat.split([piece.numel() for piece in pieces]), pieces, strict=True)
