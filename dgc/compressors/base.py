"""What every compressor offers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from dgc.corrected import Corrected
from dgc.sparse import Sparse


class Compressor(ABC):
    """Chooses the part of a tensor that is worth sending."""

    @abstractmethod
    def compress(self, corrected: Tensor, ratio: float) -> Sparse:
        """Choose at most ``keep(n, ratio)`` elements of the float32 tensor ``corrected[n]``.

        Deterministic for a seed and a number of earlier calls. A dense result may share the
        storage of ``corrected``; a sparse one never does.
        """

    def select(self, corrected: Corrected, ratio: float) -> Sparse:
        """``compress`` what is still to be computed; one that searches by a threshold does both
        in one pass over memory."""
        return self.compress(corrected.whole(), ratio)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same choices: plain numbers and containers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""


def keep(numel: int, ratio: float) -> int:
    """``k``: how many of ``n`` elements a ratio keeps; at least one, at most all."""
    return min(max(math.ceil(numel * ratio), 1), numel)
