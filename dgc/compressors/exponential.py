"""A threshold from fitted exponential tails, in stages: SIDCo (Abdelmoniem et al., 2101.10761)."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.compressors.threshold import OVERFULL, Correction, adapt, exactly, trim
from dgc.corrected import Corrected
from dgc.sparse import Sparse
from dgc.state import Resize

FEW = 1024  # elements: a fit to less saves nothing over their exact top-k
FIRST = 0.25  # the fraction that each stage but the last keeps of the one before
PERIOD = 5  # calls between changes of the number of stages
OFF = 0.2  # a mean count further than this from k, relative to k, changes the number of stages
CORRECTION = Correction(lower=1 / 2, upper=4 / 3, down=0.9)


class ExponentialThreshold(Compressor):
    """The elements beyond a threshold that is fitted to their magnitudes, in M stages.

    Magnitudes are taken for exponentially distributed, so that a fraction δ exceeds mean·ln(1/δ).
    Tails of gradients are heavier, so each further stage fits a distribution to what exceeds the
    threshold η of the one before:

        η ← mean|x|·ln(1/δ1);   then  η ← η + mean(|x| - η over |x| > η)·ln(1/δi)

    The δi multiply to the density: 1/4 in every stage but the last. Every five calls M changes by
    one where the mean count was off by more than a fifth of k: it goes on in the same direction
    while that helps, and turns where it does not. An overfull selection is trimmed by magnitude;
    the paper sends it. Where fewer than half of k or more than 4 k are found, the threshold is
    corrected at once, as for ``GaussianThreshold``.
    """

    remembers = Resize.PER_RANK

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return at most ``keep(n, density)`` elements, and at least half of that where so many are
        not 0."""
        n, k = corrected.numel, keep(corrected.numel, density)
        if n < FEW or k == n:
            return exactly(corrected, k).sparse
        known = corrected.state
        stages = min(int(known.get('stages', 1)), most_stages(k / n))
        threshold = fit(corrected.materialize().abs(), k / n, stages)
        if not math.isfinite(threshold):
            return exactly(corrected, k).sparse
        found = corrected.search(threshold, OVERFULL * k)
        note(known, found.total / k, stages, most_stages(k / n))
        if CORRECTION.lower * k <= found.total <= OVERFULL * k:
            return trim(found, k, n)
        sparse = adapt(corrected, threshold, k, CORRECTION).sparse
        return (
            sparse if len(sparse.values) >= CORRECTION.lower * k else exactly(corrected, k).sparse
        )


def fit(magnitudes: Tensor, density: float, stages: int) -> float:
    """Return the threshold of float32 ``magnitudes[n]`` after some stages; NaN or infinite where
    their mean is."""
    threshold, left = 0.0, density
    for stage in range(stages):
        if stage:
            magnitudes = magnitudes[magnitudes > threshold]
        if not len(magnitudes):
            break
        part = left if stage + 1 == stages else FIRST
        left /= part
        mean = float(magnitudes.mean(dtype=torch.float64)) - threshold
        threshold += mean * math.log(1 / part)
    return threshold


def most_stages(density: float) -> int:
    """Return the largest number of stages whose fractions leave something for the last."""
    return max(math.ceil(math.log(density) / math.log(FIRST)), 1)


def note(state: MutableMapping[str, Any], count: float, stages: int, most: int) -> None:
    """Note a count, in units of k; every PERIOD calls, change the number of stages for the next.

    Args:
        state: Of the bucket: 'stages', 'counts' since the last change, 'direction' and 'off' of it.
        count: Elements found, divided by k.
        stages: With how many they were found.
        most: The largest number of stages.
    """
    counts = [*state.get('counts', []), count]
    direction, before = state.get('direction', 1), state.get('off', math.inf)
    if len(counts) >= PERIOD:
        off = abs(sum(counts) / len(counts) - 1)
        if off > OFF:
            if off > before or not 1 <= stages + direction <= most:
                direction = -direction
            stages = min(max(stages + direction, 1), most)
        counts, before = [], off
    state.update(stages=stages, counts=counts, direction=direction, off=before)
