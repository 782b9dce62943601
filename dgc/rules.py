"""Exceptions from the schedule by parameter: never compressed, or another density."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from dgc.schedule import DensitySchedule, density_of


@dataclass(frozen=True)
class LayerRules:
    """Exceptions from the schedule, by parameter name and shape.

    Attributes:
        dense: Shell patterns of names of parameters that are never compressed, such as
            ``'features.0.*'``.
        min_numel: Parameters with fewer elements are never compressed.
        ratios: Pattern → final ``compress_ratio``; the first match counts, with the warm-up of the
            other parameters.
        min_dims: Parameters of fewer dimensions are never compressed. By default biases and the
            scales of normalisation layers are not: they are a few thousandths of a model, and
            BatchNorm suffers from stale updates. 0 compresses them too.
    """

    dense: Sequence[str] = ()
    min_numel: int = 0
    ratios: Mapping[str, float] = field(default_factory=dict)
    min_dims: int = 2

    def is_dense(self, name: str, shape: Sequence[int]) -> bool:
        """Return whether a parameter is never compressed, whatever the schedule says."""
        return (
            len(shape) < self.min_dims
            or math.prod(shape) < self.min_numel
            or any(fnmatchcase(name, pattern) for pattern in self.dense)
        )

    def schedule(self, name: str, schedule: DensitySchedule) -> DensitySchedule:
        """Return the schedule of the parameter called ``name``."""
        for pattern, ratio in self.ratios.items():
            if fnmatchcase(name, pattern):
                return schedule.towards(density_of(ratio))
        return schedule
