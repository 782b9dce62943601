"""The fields of the table of algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch.optim import Optimizer

from dgc.composition import Composition


class Law(Enum):
    """Properties that hold for an algorithm, and are tested for it (tests/dgc/test_properties.py).

    Every algorithm also agrees (parameters are bit-identical on all ranks after every step),
    resumes (a checkpoint changes nothing) and skips (a skipped step changes no state).
    """

    CONSERVES = 'sent + residual = corrected on each rank; applied + residuals = gradients in all'
    CONSERVES_ROUNDED = 'the same of a memory in bfloat16, up to the rounding of each step'
    EQUALS_DENSE = 'uncompressed, it equals the optimizer on the mean gradient'
    FLUSHES = 'residuals are empty after an uncompressed step'


class Kind(Enum):
    """How ranks train: synchronously, or through a parameter server."""

    SYNCHRONOUS = 'synchronous'
    ASYNCHRONOUS = 'asynchronous'
    LOCAL_STEPS = 'local steps'
    ASYNCHRONOUS_LOCAL_STEPS = 'asynchronous local steps'

    @property
    def has_server(self) -> bool:
        """Whether ranks train through a parameter server."""
        return self in (Kind.ASYNCHRONOUS, Kind.ASYNCHRONOUS_LOCAL_STEPS)


CONSERVING = frozenset({Law.CONSERVES, Law.EQUALS_DENSE, Law.FLUSHES})


@dataclass(frozen=True)
class Algorithm:
    """A row of the table.

    Attributes:
        name: By which benchmarks and tools call it.
        summary: One line.
        paper: Authors, venue and arXiv number.
        make: Returns a fresh composition (for a parameter server, an asynchronous one); its keyword
            arguments are the algorithm's settings.
        configs: The files that choose it, in order, after those of a model.
        laws: Properties that hold for it.
        kind: How ranks train.
        has_density: It takes ``compress_ratio``, the density of its messages.
        optimizer: The only optimizer that it works with; None for those that ``wiring.check``
            accepts.
        chooses_rule: Its config files choose the rule by which parameters are updated, with a
            learning rate for it, as a part of the method, whatever ``optimizer`` accepts.
    """

    name: str
    summary: str
    paper: str
    make: Callable[..., Any]
    configs: tuple[str, ...]
    laws: frozenset[Law] = CONSERVING
    kind: Kind = Kind.SYNCHRONOUS
    has_density: bool = True
    optimizer: type[Optimizer] | None = None
    chooses_rule: bool = False

    @property
    def has_own_rule(self) -> bool:
        """Whether another optimizer than that of its config files would make another method."""
        return self.chooses_rule or self.optimizer is not None

    def composition(self, density: float | None = None, **settings: Any) -> Composition:
        """Return a fresh composition.

        Args:
            density: ``compress_ratio``, where the algorithm has one; None for its default.
            settings: Others of its settings.
        """
        if density is not None and self.has_density:
            settings['compress_ratio'] = density
        made: Composition = self.make(**settings)
        return made
