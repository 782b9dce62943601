"""Exceptions from the schedule by parameter: never compressed, or another density."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice

from dgc.checks import check_number, shortened
from dgc.schedule import DensitySchedule, density_of


@dataclass(frozen=True)
class LayerRules:
    """Exceptions from the schedule, by parameter name and shape.

    Attributes:
        dense: Shell patterns of names of parameters that are never compressed, such as
            ``'features.0.*'``.
        min_numel: Parameters with fewer elements are never compressed.
        ratios: Pattern → final ``compress_ratio``, below 1 or its inverse as everywhere; the first
            match counts, with the warm-up of the other parameters.
        min_dims: Parameters of fewer dimensions are never compressed. By default biases and the
            scales of normalisation layers are not: they are a few thousandths of a model, and
            BatchNorm suffers from stale updates. 0 compresses them too.

    Raises:
        TypeError: For a single string in the place of a list, and for what is no number.
        ValueError: For a ratio that is not above 0.
    """

    dense: Sequence[str] = ()
    min_numel: int = 0
    ratios: Mapping[str, float] = field(default_factory=dict)
    min_dims: int = 2

    def __post_init__(self) -> None:
        if isinstance(self.dense, str):
            # Each of its characters would be a pattern, and '*' would match everything.
            raise TypeError(
                f'rules.dense must be a list of patterns, got {self.dense!r}: write '
                f'dense=[{self.dense!r}]'
            )
        if not isinstance(self.ratios, Mapping):
            raise TypeError(
                'rules.ratios must be a dictionary from pattern to compress_ratio, got '
                f"{shortened(self.ratios)}: write for example ratios={{'head.*': 0.01}}"
            )
        for pattern, ratio in self.ratios.items():
            check_number(f'rules.ratios[{pattern!r}]', ratio)
            if not ratio > 0:
                raise ValueError(f'rules.ratios[{pattern!r}] must be above 0, got {ratio}')
        check_number('rules.min_numel', self.min_numel)
        check_number('rules.min_dims', self.min_dims)

    def check_patterns(self, names: Collection[str]) -> None:
        """Raise ValueError where a pattern matches none of a model's parameter names."""
        for setting, patterns in (('dense', self.dense), ('ratios', self.ratios)):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    some = ', '.join(islice(names, 5)) + (', …' if len(names) > 5 else '')
                    raise ValueError(
                        f'rules.{setting} has the pattern {pattern!r}, which matches no parameter '
                        f'of the model: its parameters are {some}'
                    )

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
