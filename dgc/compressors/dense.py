"""No selection: all elements are sent."""

from __future__ import annotations

from dgc.bucket_spec import BucketSpec
from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.sparse import Payload, Sparse


class Dense(Compressor):
    """Sends every element, for exchanges that take dense messages."""

    payload = Payload.DENSE

    def budget(self, spec: BucketSpec, density: float) -> int:
        """Return ``n``."""
        return spec.numel

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return all of it, in its own storage."""
        return Sparse(corrected.materialize(), None, corrected.numel)
