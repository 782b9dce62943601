"""An exact threshold that is used again and again (Ok-Topk: Li and Hoefler, PPoPP 2022, 3.1.3)."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.compressors.threshold import OVERFULL, exactly, trim
from dgc.corrected import Corrected
from dgc.sparse import Sparse

LOWER, UPPER = 2 / 3, 5 / 4  # times k: fewer are too few, more are too many
DOWN, UP = 0.992, 1.012  # what the threshold is multiplied by then


class Known(NamedTuple):
    """A threshold in use. k: what it is for. calls: those it has served, with the exact one."""

    k: int
    threshold: float
    calls: int


class PeriodicThreshold(Compressor):
    """Top-k every ``period`` calls for a bucket; between them, what reaches its threshold.

    Gradients change slowly, so that the k-th largest magnitude does. A reused threshold that finds
    too few or too many moves a little for the next call. The exact one is found anew where it
    finds nothing or more than ``4 k``, and where ``k`` has changed. An overfull selection is
    trimmed by magnitude; Ok-Topk sends it.

    period: calls to an exact threshold, the paper's τ'; 1 is TopK.

    Raises ValueError for a period below 1.
    """

    def __init__(self, period: int = 32) -> None:
        if period < 1:
            raise ValueError(f'period must be at least 1, got {period}')
        self.period = period
        self._known: dict[str, Known] = {}

    def compress(self, corrected: Tensor, ratio: float) -> Sparse:
        """At most ``keep(n, ratio)`` elements; exactly that where the threshold is exact."""
        return self.select(Corrected(corrected), ratio)

    def select(self, corrected: Corrected, ratio: float) -> Sparse:
        """At most ``keep(n, ratio)`` elements; exactly that where the threshold is exact."""
        k = keep(corrected.numel, ratio)
        known = self._known.get(corrected.name)
        if known is None or known.k != k or known.calls >= self.period:
            return self._renew(corrected, k)
        found = corrected.search(known.threshold, OVERFULL * k)
        if found.total > OVERFULL * k or (known.threshold > 0 and not found.total):
            return self._renew(corrected, k)
        moved = known.threshold * step(found.total, k)
        self._known[corrected.name] = Known(k, moved, known.calls + 1)
        return trim(found, k, corrected.numel)

    def _renew(self, corrected: Corrected, k: int) -> Sparse:
        """The ``k`` largest; the least of them is the threshold from now on."""
        sparse, threshold = exactly(corrected, k)
        self._known[corrected.name] = Known(k, threshold, 1)
        return sparse

    def state_dict(self) -> dict[str, Any]:
        """The thresholds and their age, by the name of the bucket."""
        return {'known': {name: known._asdict() for name, known in self._known.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the saved thresholds."""
        self._known = {name: Known(**known) for name, known in state.get('known', {}).items()}


def step(found: int, k: int) -> float:
    """What a threshold that found so many is multiplied by."""
    if found < LOWER * k:
        return DOWN
    return UP if found > UPPER * k else 1.0
