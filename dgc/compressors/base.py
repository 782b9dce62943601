"""The interface of compressors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.corrected import Corrected
from dgc.sparse import Payload, Sparse
from dgc.state import Entries, Resize, Values


class Compressor(ABC):
    """Selects the part of a tensor that is sent.

    Attributes:
        payload: Whether its messages carry all elements in order (dense) or some with indices.
        remembers: Where it keeps plain values for a bucket between steps (``corrected.state``), how
            these follow a change of the world size; None where it keeps nothing.
        chunk: Elements of the chunks over which a selection is spread evenly, as an index coding
            may need it; None where it may lie anywhere.
    """

    payload = Payload.SPARSE
    remembers: Resize | None = None
    chunk: int | None = None

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the plain values that ``corrected.state`` holds."""
        return {} if self.remembers is None else {'search': Values(self.remembers)}

    def budget(self, spec: BucketSpec, density: float) -> int:
        """Return the largest number of elements that ``select`` takes from such a bucket."""
        return keep(spec.numel, density)

    def check_buckets(self, buckets: Sequence[BucketSpec]) -> None:
        """Warn where a division into buckets has elements that are never selected."""

    @abstractmethod
    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Select the elements to be sent.

        Args:
            corrected: Float32 ``[n]``, and what this compressor remembers of the bucket.
            density: The fraction of the elements to send, above 0 and at most 1.

        Returns:
            At most ``budget(spec, density)`` elements, in ascending order; the same for the same
            input and the same remembered values. A dense result may share the storage of
            ``corrected``; a sparse one never does.
        """

    def compress(self, corrected: Tensor, density: float) -> Sparse:
        """Select from a tensor ``[n]``, without state from earlier steps."""
        return self.select(Corrected(corrected), density)


def keep(numel: int, density: float) -> int:
    """Return ``k = ⌈density · n⌉``, at least 1 and at most ``n``."""
    return min(max(math.ceil(numel * density), 1), numel)
