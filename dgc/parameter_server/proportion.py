"""Which updates are out of proportion: their norm against the median of earlier ones."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

from dgc.sparse import Sparse

WINDOW = 101  # accepted updates of which the median is taken
ENOUGH = 10  # accepted updates before one is refused
IN_A_ROW = 10  # refused updates of one worker, after which it gives up


def norm(update: Sequence[Sparse]) -> float:
    """The Euclidean norm of an update, over all its buckets."""
    return math.sqrt(sum(float(part.values.double().square().sum()) for part in update))


class Proportion:
    """Refuses updates whose norm is more than ``ratio`` times the running median.

    Args:
        ratio: None refuses nothing.
    """

    def __init__(self, ratio: float | None = None) -> None:
        if ratio is not None and not ratio > 1:
            raise ValueError(f'configs.server.max_norm_ratio must be above 1, got {ratio}')
        self._ratio = ratio
        self._norms: deque[float] = deque(maxlen=WINDOW)

    def objection(self, update: Sequence[Sparse]) -> str:
        """Why ``update`` is refused; '' where it is accepted, which makes it count from then on."""
        if self._ratio is None:
            return ''
        size = norm(update)
        if len(self._norms) >= ENOUGH:
            median = statistics.median(self._norms)
            if size > self._ratio * median:
                return (
                    f'its norm is {size:.3g}, the median of the last {len(self._norms)} is '
                    f'{median:.3g} (configs.server.max_norm_ratio = {self._ratio:g})'
                )
        self._norms.append(size)
        return ''

    def state(self) -> list[float]:
        """The norms that count."""
        return list(self._norms)

    def load(self, norms: Iterable[float]) -> None:
        """Continue from ``state()``."""
        self._norms = deque((float(each) for each in norms), maxlen=WINDOW)
