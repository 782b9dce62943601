"""L-GreCo (Markov et al., MLSys 2024, arXiv 2210.17357): densities by bucket, for an error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgc.buckets import Bucket
from dgc.compressors.base import keep
from dgc.control.base import Control, controlled, values
from dgc.engines.base import Engine
from dgc.sparse import Sparse
from dgc.volume import Volume

Numbers = NDArray[np.float64]


class LGreCo(Control):
    """Every ``every`` steps, gives each bucket the density with which all messages together are
    shortest, and their error no larger than with the scheduled densities.

        error of a bucket at a density   the sum of squares of all but the k largest elements of
                                         residual + gradient, added up over the ranks
        size                             the bytes of the composition's message

    A bucket should be a layer (the planner ``PerTensor``): within a bucket, a selection of the
    largest elements divides the message among layers by itself.

    Args:
        every: Steps between two decisions. The first one is after as many.
        spread: Densities from 1/spread to spread times the scheduled one are tried.
        candidates: The number of densities that are tried, evenly spaced in their logarithm: an odd
            one, of which the middle one is the scheduled density.
        bins: Parts of the error budget that the dynamic programme tells apart.

    Raises:
        ValueError: For settings out of range.
    """

    def __init__(
        self, every: int = 100, spread: float = 8.0, candidates: int = 13, bins: int = 2000
    ) -> None:
        if every < 1 or bins < 1:
            raise ValueError(f'every and bins must be at least 1, got {every} and {bins}')
        if spread <= 1:
            raise ValueError(f'spread must be above 1, got {spread}')
        if candidates < 3 or candidates % 2 == 0:
            raise ValueError(f'candidates must be odd, and at least 3, got {candidates}')
        self.every, self.spread, self.candidates, self.bins = every, spread, candidates, bins

    @property
    def factors(self) -> list[float]:
        """The factors that are tried, ascending; the middle one is 1."""
        middle = self.candidates // 2
        return [self.spread ** ((place - middle) / middle) for place in range(self.candidates)]

    def observe(self, bucket: Bucket, corrected: Tensor, selected: Sparse) -> None:
        """Note, every ``every`` steps, the error at each density."""
        held = values(bucket)
        held['steps'] = held.get('steps', 0) + 1
        if held['steps'] % self.every:
            return
        squares = corrected.float().square().sort(descending=True).values
        sums = torch.cat([squares.new_zeros(1), squares]).double().cumsum(0)
        counts = [keep(len(squares), density) for density in self._densities(bucket)]
        errors = sums[-1] - sums[torch.tensor(counts, device=sums.device)]
        held['errors'] = errors.clamp(min=0).tolist()

    def _densities(self, bucket: Bucket) -> list[float]:
        """Return the densities that are tried for a bucket."""
        return [min(1.0, values(bucket)['scheduled'] * factor) for factor in self.factors]

    def decide(self, buckets: Sequence[Bucket], engine: Engine, volume: Volume) -> None:
        """Choose factors from the errors of all ranks."""
        noted = [bucket for bucket in controlled(buckets) if 'errors' in values(bucket)]
        if not noted:
            return
        rows = [values(bucket).pop('errors') for bucket in noted]
        ours = torch.tensor(rows, dtype=torch.float32, device=noted[0].device)
        summed = engine.all_reduce(ours)
        errors = summed.double().cpu().numpy()
        size, middle = max(engine.size, 2), self.candidates // 2
        sizes = np.zeros_like(errors)
        for row, bucket in enumerate(noted):
            for column, density in enumerate(self._densities(bucket)):
                sizes[row, column] = volume.bytes_sent(bucket.spec, density, size)
                if not volume.compresses(bucket.spec, density, size):
                    errors[row, column] = 0.0
        for bucket, place in zip(noted, allocate(errors, sizes, middle, self.bins), strict=True):
            values(bucket)['factor'] = self.factors[place]


def allocate(errors: Numbers, sizes: Numbers, uniform: int, bins: int) -> list[int]:
    """Choose a column of each row: of the least size in all, among choices whose errors add up to
    at most those of the column ``uniform``.

    By dynamic programming over the rows. Errors count in parts of the budget, rounded up, so the
    budget is kept, and may be used but for as many parts as there are rows. Where nothing found is
    smaller, the uniform choice stays. A pure function, alike on all ranks.

    Args:
        errors, sizes: ``[rows, columns]``.
        uniform: The column that gives the budget.
        bins: The number of parts of the budget.

    Returns:
        A column for each row.
    """
    rows, columns = errors.shape
    budget = float(errors[:, uniform].sum())
    if not (budget > 0 and math.isfinite(budget)):
        return [uniform] * rows
    parts = np.ceil(np.minimum(errors / budget * bins, bins + 1)).astype(np.int64)
    least = np.zeros(bins + 1)  # size of the rows so far, by the parts that they may use
    choices = np.zeros((rows, bins + 1), dtype=np.int64)
    for row in range(rows):
        found = np.full(bins + 1, np.inf)
        for column in range(columns):
            used = parts[row, column]
            if used > bins:
                continue
            attempt = np.full(bins + 1, np.inf)
            attempt[used:] = least[: bins + 1 - used] + sizes[row, column]
            better = attempt < found
            found[better], choices[row, better] = attempt[better], column
        least = found
    if not least[bins] < sizes[:, uniform].sum():
        return [uniform] * rows
    chosen, left = [0] * rows, bins
    for row in reversed(range(rows)):
        chosen[row] = int(choices[row, left])
        left -= int(parts[row, chosen[row]])
    return chosen
