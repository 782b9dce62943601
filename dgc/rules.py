"""Which parameters stay dense, and which have a ratio of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import Tensor

from dgc.schedule import RatioSchedule


@dataclass(frozen=True)
class LayerRules:
    """Exceptions by parameter.

    Parameters of fewer than two dimensions (biases, the scales of normalisation) are always dense:
    they are a few thousandths of a model, and BatchNorm suffers from stale updates.

    dense: shell patterns of parameter names that stay dense, such as ``'features.0.*'``.
    min_numel: parameters with fewer elements stay dense.
    ratios: pattern to final ratio; the first that matches counts, with the warm-up of the others.
    """

    dense: Sequence[str] = ()
    min_numel: int = 0
    ratios: Mapping[str, float] = field(default_factory=dict)

    def is_dense(self, name: str, parameter: Tensor) -> bool:
        """Whether ``parameter`` stays dense whatever the schedule says."""
        return (
            parameter.dim() < 2
            or parameter.numel() < self.min_numel
            or any(fnmatchcase(name, pattern) for pattern in self.dense)
        )

    def schedule(self, name: str, schedule: RatioSchedule) -> RatioSchedule:
        """The schedule of the parameter called ``name``."""
        for pattern, ratio in self.ratios.items():
            if fnmatchcase(name, pattern):
                return schedule.towards(ratio)
        return schedule
