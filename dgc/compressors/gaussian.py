"""A threshold from a fitted normal distribution: Gaussian-k (Shi et al., arXiv 1911.08772)."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.compressors.threshold import Correction, adapt, exactly
from dgc.corrected import Corrected
from dgc.sparse import Sparse

FEW = 1024  # elements: a fit to less saves nothing over their exact top-k
PART = 1 << 18  # elements whose squares are added up in float32
CORRECTION = Correction(lower=2 / 3, upper=4 / 3, down=0.9)


class GaussianThreshold(Compressor):
    """The elements beyond the threshold that would leave ``k`` of a normal distribution's.

    Gradients have heavier tails, so it is off. It falls by a tenth where it finds less than
    ``2/3 k``; where it finds more than ``4/3 k``, the first ``4 k`` say how far to raise it. What
    it had to be multiplied by is remembered by the name of the bucket, and is where the next search
    starts. The release halves it, or raises it by a half: what a memory keeps back crowds just
    below the last threshold, so that half of it may find a hundred times ``k``.
    """

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}

    def compress(self, corrected: Tensor, ratio: float) -> Sparse:
        """At most ``keep(n, ratio)`` elements, and two thirds of that where so many are not 0."""
        return self.select(Corrected(corrected), ratio)

    def select(self, corrected: Corrected, ratio: float) -> Sparse:
        """At most ``keep(n, ratio)`` elements, and two thirds of that where so many are not 0."""
        n, k = corrected.numel, keep(corrected.numel, ratio)
        if n < FEW or k == n:
            return exactly(corrected, k).sparse
        fitted = fit(corrected.whole(), k / n)
        if not math.isfinite(fitted):  # some elements are not, or too large to be squared
            return exactly(corrected, k).sparse
        factor = self._factors.get(corrected.name, 1.0)
        found = adapt(corrected, fitted * factor, k, CORRECTION)
        if len(found.sparse.values) < CORRECTION.lower * k and found.threshold > 0:
            found = exactly(corrected, k)
        if fitted > 0:
            self._factors[corrected.name] = found.threshold / fitted
        return found.sparse

    def state_dict(self) -> dict[str, Any]:
        """The factors, by the name of the bucket."""
        return {'factors': dict(self._factors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next search where the saved compressor would."""
        self._factors = dict(state.get('factors', {}))


def fit(values: Tensor, share: float) -> float:
    """The magnitude that a ``share`` of float32 ``values[n]`` exceeds, were they normal.

    ``|µ| + σ·Φ⁻¹(1 - share/2)``: exact for ``µ = 0``; otherwise one tail holds its half of the
    share, and the other less. Infinite or NaN where the squares of ``values`` add up to that.
    """
    mean = float(values.mean())
    # torch.std_mean takes forty times as long on a CPU, and one norm of all is off by 0.1 %.
    norms = torch.stack([torch.linalg.vector_norm(part) for part in values.split(PART)])
    square = float(torch.linalg.vector_norm(norms, dtype=torch.float64)) ** 2 / values.numel()
    deviation = math.sqrt(max(square - mean**2, 0.0))
    return abs(mean) - deviation * NormalDist().inv_cdf(share / 2)
