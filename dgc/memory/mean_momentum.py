"""Momentum correction whose uncompressed phase has the momentum of the mean, as in the release."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dgc.buckets import Bucket
from dgc.exchanges.base import Exchanged
from dgc.memory.momentum_correction import MomentumCorrection
from dgc.sparse import Sparse


class MeanMomentum(MomentumCorrection):
    """MomentumCorrection, but for buckets whose schedule has them uncompressed (``wm5o``).

    These send gradients, with what is left of a sparse phase, and every rank keeps the momentum of
    their mean ḡ, as the release of Deep Gradient Compression does:

        u ← m·u + ḡ,  the result is u        Nesterov:  u ← m·(u + ḡ),  the result is u + ḡ

    The results are those of MomentumCorrection up to rounding, since the mean of momenta is the
    momentum of the mean. They differ once the bucket is compressed: all ranks begin with the
    momentum of the mean, instead of each with its own. A bucket that is sent dense only since that
    is shorter has each rank's momentum.
    """

    needs_mean = True
    changes_mean = True
    continues = False

    def compensate(self, bucket: Bucket) -> Tensor:
        """Without compression, add the gradient alone; return ``v[n]``."""
        if bucket.density is not None:
            return super().compensate(bucket)
        wide = self.widened(bucket)
        wide['velocity'].add_(bucket.contribution)
        self.keep(bucket, wide)
        return wide['velocity']

    def _is_fused(self, bucket: Bucket) -> bool:
        """No kernel adds a gradient without its momentum."""
        return bucket.density is not None and super()._is_fused(bucket)

    def update(
        self, bucket: Bucket, selected: Sparse, exchanged: Exchanged, result: Sequence[Tensor]
    ) -> None:
        """Compute the residual; without compression, make ``result`` the momentum of the mean."""
        super().update(bucket, selected, exchanged, result)
        if bucket.density is not None:
            return
        wide = self.widened(bucket)
        momenta = wide['momentum'].split([mean.numel() for mean in result])
        for momentum, mean in zip(momenta, result, strict=True):
            if bucket.nesterov:
                momentum.add_(mean).mul_(bucket.momentum)
                mean.add_(momentum)
            else:
                momentum.mul_(bucket.momentum).add_(mean)
                mean.copy_(momentum)
        self.keep(bucket, wide)
