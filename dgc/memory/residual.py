"""Error feedback by a residual."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.corrected import Corrected
from dgc.memory.base import Memory, clear, deferred, storage_type
from dgc.ops import Update, is_fused, is_native
from dgc.sparse import Sparse


class Residual(Memory):
    """Error feedback: what was not sent is added to the next gradient (Aji and Heafield, 2017).

    Args:
        decay: The residual is multiplied by it before a gradient is added: 1 keeps everything;
            below 1 stale residuals fade (SparseLoCo, arXiv 2508.15706).
        dtype: Of the residual: 'float32', 4 bytes per element, or 'bfloat16', 2
            (``dgc.memory.base`` says what is conserved then).

    Raises:
        ValueError: For a decay outside (0, 1], or another type.
    """

    buffers = ('residual',)
    unsent = 'residual'
    continues = True

    def __init__(self, decay: float = 1.0, dtype: str | torch.dtype = 'float32') -> None:
        if not 0 < decay <= 1:
            raise ValueError(f'decay must be above 0 and at most 1, got {decay}')
        self.decay = decay
        self.dtype = storage_type(dtype)

    def compensate(self, bucket: Bucket) -> Tensor:
        """``residual ← decay·residual + gradient``."""
        wide = self.widened(bucket)
        residual = wide['residual']
        if self.decay != 1:
            for begins, (part,) in self.parts(bucket, residual):
                if begins:
                    part.mul_(self.decay)
        residual.add_(bucket.contribution)
        self.keep(bucket, wide)
        return residual

    def renewed(self, bucket: Bucket) -> Sequence[str]:
        """The residual, where the C++ kernel adds the gradient."""
        renews = bucket.renews and is_native(bucket.device) and self._is_fused(bucket)
        return ('residual',) if renews else ()

    def _is_fused(self, bucket: Bucket) -> bool:
        """Return whether a kernel adds the gradient of this step."""
        return self.decay == 1 and is_fused(bucket.contribution_dtype, bucket.device)

    def corrected(self, bucket: Bucket) -> Corrected:
        """``compensate``, fused with the compressor's search."""
        if not self._is_fused(bucket):
            return super().corrected(bucket)
        residual = bucket.buffers['residual']
        into = bucket.renew(self.renewed(bucket))
        pieces, seed = bucket.contribution_pieces, self.rounding(bucket)
        return deferred(bucket, residual, Update(pieces, into=into, rounding=seed))

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """``residual ← 0`` at the positions that were sent."""
        clear(bucket.buffers['residual'], sent)

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``residual += error``."""
        self.add(bucket, 'residual', error)
