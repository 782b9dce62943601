"""A threshold from a fitted normal distribution: Gaussian-k (Shi et al., arXiv 1911.08772)."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.compressors.threshold import Correction, adapt, exactly
from dgc.corrected import Corrected
from dgc.sparse import Sparse
from dgc.state import Resize

FEW = 1024  # elements: a fit to less saves nothing over their exact top-k
PART = 1 << 18  # elements whose squares are added up in float32
CORRECTION = Correction(lower=2 / 3, upper=4 / 3, down=0.9)


class GaussianThreshold(Compressor):
    """The elements beyond the threshold that ``k`` elements of a normal distribution exceed.

    Gradients have heavier tails, so the fitted threshold is off by a factor. The threshold falls by
    a tenth where it finds less than ``2/3 k``; where it finds more than ``4/3 k``, the first
    ``4 k`` say how far to raise it. The total factor is remembered for each bucket, and the next
    search starts there. The release halves the threshold, or raises it by a half: residuals
    accumulate just below the last threshold, so that half of it may find a hundred times ``k``.
    """

    remembers = Resize.PER_RANK

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return at most ``keep(n, density)`` elements, and at least two thirds of that where so
        many are not 0."""
        n, k = corrected.numel, keep(corrected.numel, density)
        if n < FEW or k == n:
            return exactly(corrected, k).sparse
        fitted = fit(corrected.materialize(), k / n)
        if not math.isfinite(fitted):  # some elements are not, or too large to be squared
            return exactly(corrected, k).sparse
        factor = corrected.state.get('factor', 1.0)
        found = adapt(corrected, fitted * factor, k, CORRECTION)
        if len(found.sparse.values) < CORRECTION.lower * k and found.threshold > 0:
            found = exactly(corrected, k)
        if fitted > 0:
            corrected.state['factor'] = found.threshold / fitted
        return found.sparse


def fit(values: Tensor, density: float) -> float:
    """Return the magnitude that a ``density`` of normally distributed ``values[n]`` exceeds.

    ``|µ| + σ·Φ⁻¹(1 - density/2)``: exact for ``µ = 0``; otherwise one tail holds half of the
    density, and the other less. Infinite or NaN where the squares of ``values`` add up to that.
    """
    mean = float(values.mean())
    # torch.std_mean takes forty times as long on a CPU, and one norm of all is off by 0.1 %.
    norms = torch.stack([torch.linalg.vector_norm(part) for part in values.split(PART)])
    square = float(torch.linalg.vector_norm(norms, dtype=torch.float64)) ** 2 / values.numel()
    deviation = math.sqrt(max(square - mean**2, 0.0))
    return abs(mean) - deviation * NormalDist().inv_cdf(density / 2)
