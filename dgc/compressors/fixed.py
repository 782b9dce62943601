"""All elements above a fixed magnitude: threshold-v (Strom, 2015; Dutta et al., 1911.08250)."""

from __future__ import annotations

import math

from dgc.compressors.base import Compressor, keep
from dgc.compressors.threshold import OVERFULL, Correction, adapt, trim
from dgc.corrected import Corrected
from dgc.sparse import Sparse

RAISE = Correction(lower=0.0, upper=math.inf, down=1.0)  # only where a search cannot hold them all


class FixedThreshold(Compressor):
    """The elements whose magnitude is at least ``threshold``, at most k of them, perhaps none.

    The density of the schedule bounds a message, since its buffer must be allocated; the largest
    are sent where more exceed the threshold. With ``TightAllGather`` only what was found travels.

    Args:
        threshold: v, in units of the corrected gradient.

    Raises:
        ValueError: For a threshold that is not above 0.
    """

    def __init__(self, threshold: float) -> None:
        if not 0 < threshold < math.inf:
            raise ValueError(f'threshold must be above 0 and finite, got {threshold}')
        self.threshold = threshold

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return the elements at or above the threshold, or the largest of them."""
        k = keep(corrected.numel, density)
        found = corrected.search(self.threshold, OVERFULL * k)
        if found.total <= OVERFULL * k:
            return trim(found, k, corrected.numel)
        return adapt(corrected, self.threshold, k, RAISE).sparse
