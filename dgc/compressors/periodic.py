"""An exact threshold, reused for several steps (Ok-Topk: Li and Hoefler, PPoPP 2022, 3.1.3)."""

from __future__ import annotations

from dgc.compressors.base import Compressor, keep
from dgc.compressors.threshold import OVERFULL, exactly, trim
from dgc.corrected import Corrected
from dgc.sparse import Sparse
from dgc.state import Resize

LOWER, UPPER = 2 / 3, 5 / 4  # times k: fewer are too few, more are too many
DOWN, UP = 0.992, 1.012  # factors of the threshold in these cases


class PeriodicThreshold(Compressor):
    """An exact threshold every ``period`` calls for a bucket, reused in between.

    Gradients change slowly, and so does the k-th largest magnitude. A reused threshold that finds
    too few or too many elements moves by about 1 % for the next call. The exact threshold is
    computed anew where it finds nothing or more than ``4 k``, and where ``k`` has changed. An
    overfull selection is trimmed by magnitude; Ok-Topk sends it.

    Args:
        period: Calls for which an exact threshold serves, the paper's τ'; 1 is TopK.

    Raises:
        ValueError: For a period below 1.
    """

    remembers = Resize.PER_RANK

    def __init__(self, period: int = 32) -> None:
        if period < 1:
            raise ValueError(f'period must be at least 1, got {period}')
        self.period = period

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return at most ``keep(n, density)`` elements; exactly that where the threshold is
        exact."""
        k, known = keep(corrected.numel, density), corrected.state
        if known.get('k') != k or known['calls'] >= self.period:
            return renew(corrected, k)
        threshold = known['threshold']
        found = corrected.search(threshold, OVERFULL * k)
        if found.total > OVERFULL * k or (threshold > 0 and not found.total):
            return renew(corrected, k)
        known.update(threshold=threshold * step(found.total, k), calls=known['calls'] + 1)
        return trim(found, k, corrected.numel)


def renew(corrected: Corrected, k: int) -> Sparse:
    """Return the ``k`` largest, and remember the smallest of them as the threshold."""
    sparse, threshold = exactly(corrected, k)
    corrected.state.update(k=k, threshold=threshold, calls=1)
    return sparse


def step(found: int, k: int) -> float:
    """Return the factor of a threshold that found ``found`` elements."""
    if found < LOWER * k:
        return DOWN
    return UP if found > UPPER * k else 1.0
