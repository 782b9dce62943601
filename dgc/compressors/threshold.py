"""Selection by an estimated threshold: search, correct the threshold, trim."""

from __future__ import annotations

from typing import NamedTuple

from dgc.compressors.topk import largest, least
from dgc.corrected import Corrected
from dgc.ops import Found
from dgc.sparse import Sparse, gather, kth_largest, nan_as_infinity

OVERFULL = 4  # times k: a search writes down no more candidates than that


class Correction(NamedTuple):
    """When a threshold is corrected, and by how much.

    Attributes:
        lower, upper: Fewer than ``lower * k`` elements are too few, more than ``upper * k`` too
            many.
        down, up: Factors of the threshold in these cases. Where ``up`` is None, too many elements
            are trimmed at once; more than a search writes down raise the threshold to the k-th
            largest of those written down, which is never too high.
        iterations: The largest number of corrections.
    """

    lower: float
    upper: float
    down: float
    up: float | None = None
    iterations: int = 10


class Selection(NamedTuple):
    """At most ``k`` elements, and the threshold that finds them; see ``adapt``."""

    sparse: Sparse
    threshold: float


def adapt(corrected: Corrected, threshold: float, k: int, correction: Correction) -> Selection:
    """Select at most ``k`` elements at or above a threshold, correcting it until their number lies
    between the bounds.

    Returns:
        The elements, and the corrected threshold or, where it still found too many, the smallest
        of the ``k`` magnitudes.
    """
    limit = OVERFULL * k
    found = corrected.search(threshold, limit)
    for _ in range(correction.iterations):
        if found.total < correction.lower * k and threshold > 0:
            threshold *= correction.down
        elif found.total > correction.upper * k and correction.up is not None:
            threshold *= correction.up
        elif found.total > limit:
            raised = float(kth_largest(nan_as_infinity(found.values.abs()), k))
            if raised <= threshold:
                break
            threshold = raised
        else:
            break
        found = corrected.search(threshold, limit)
    if found.total > limit or (threshold > 0 and not found.total):
        return exactly(corrected, k)  # ties that no threshold could part
    sparse = trim(found, k, corrected.numel)
    if found.total > correction.upper * k:
        threshold = least(sparse.values.abs())
    return Selection(sparse, threshold)


def trim(found: Found, k: int, numel: int) -> Sparse:
    """Return the ``k`` largest of the elements found, or all of them where there are fewer."""
    if found.total <= k:
        return Sparse(found.values, found.indices, numel)
    chosen = largest(found.values.abs(), k)
    return Sparse(found.values[chosen], found.indices[chosen], numel)


def exactly(corrected: Corrected, k: int) -> Selection:
    """Return the ``k`` largest by an exact top-k of all ``n`` elements."""
    values = corrected.materialize()
    sparse = gather(values, largest(values.abs(), k))
    return Selection(sparse, least(sparse.values.abs()))
