"""No error feedback."""

from __future__ import annotations

from torch import Tensor

from dgc.buckets import Bucket
from dgc.memory.base import Memory
from dgc.sparse import Sparse


class NoMemory(Memory):
    """No error feedback: what is not sent is lost. For dense exchanges and unbiased codings."""

    feeds_back = False
    continues = True

    def compensate(self, bucket: Bucket) -> Tensor:
        """Return the gradient, float32 ``[n]``: the same storage where it is float32 already."""
        return bucket.contribution.float()

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Do nothing: there is no residual."""

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """Do nothing: errors are lost."""
