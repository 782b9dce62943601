"""How much an update counts that was computed on an older model."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Scaling(ABC):
    """What an update is multiplied by when the server takes it in."""

    @abstractmethod
    def factor(self, staleness: int) -> float:
        """staleness: updates of others since the model that it was computed on."""


class Unscaled(Scaling):
    """Every update counts alike."""

    def factor(self, staleness: int) -> float:
        """1."""
        return 1.0


class InverseStaleness(Scaling):
    """Divided by its staleness (Zhang et al., IJCAI 2016, equation 6), from 2 on."""

    def factor(self, staleness: int) -> float:
        """``1 / max(staleness, 1)``."""
        return 1 / max(staleness, 1)
