"""Choosing by a threshold that may be wrong: search, correct, trim. Every estimate ends here."""

from __future__ import annotations

from typing import NamedTuple

from dgc.compressors.topk import kth_largest, largest, least
from dgc.corrected import Corrected
from dgc.ops import Found
from dgc.sparse import Sparse, gather

OVERFULL = 4  # times k: more candidates than that are not worth writing down


class Correction(NamedTuple):
    """When a threshold is corrected, and by how much.

    lower, upper: below ``lower * k`` elements are too few, above ``upper * k`` too many.
    down, up: what it is multiplied by then. Without ``up``, too many are trimmed at once, or set
        it to the k-th largest of those that were written down, which is never too high.
    iterations: how often.
    """

    lower: float
    upper: float
    down: float
    up: float | None = None
    iterations: int = 10


class Selection(NamedTuple):
    """At most ``k`` elements, and the threshold that would have found them: see ``adapt``."""

    sparse: Sparse
    threshold: float


def adapt(corrected: Corrected, threshold: float, k: int, correction: Correction) -> Selection:
    """At most ``k`` elements at or above a threshold that is corrected until their number lies
    between the bounds. The threshold that comes back is the corrected one or, where it still found
    too many, the least of the ``k``."""
    limit = OVERFULL * k
    found = corrected.search(threshold, limit)
    for _ in range(correction.iterations):
        if found.total < correction.lower * k and threshold > 0:
            threshold *= correction.down
        elif found.total > correction.upper * k and correction.up is not None:
            threshold *= correction.up
        elif found.total > limit:
            raised = kth_largest(found.values.abs(), k)
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
    """The ``k`` largest of what was found, which is all there; or all of it, where that is less."""
    if found.total <= k:
        return Sparse(found.values, found.indices, numel)
    chosen = largest(found.values.abs(), k)
    return Sparse(found.values[chosen], found.indices[chosen], numel)


def exactly(corrected: Corrected, k: int) -> Selection:
    """The ``k`` largest, at the cost of looking at all."""
    values = corrected.whole()
    sparse = gather(values, largest(values.abs(), k))
    return Selection(sparse, least(sparse.values.abs()))
