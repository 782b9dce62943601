"""Bookkeeping of truncation error, where an exchange cuts sums on their way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dgc.exchanges.base import Exchanged, starts_with_nan
from dgc.sparse import Sparse, contains, indices_of


class Truncation:
    """What one rank sent, and what it has cut from the partial sums that passed it.

    A partial sum holds contributions of many ranks, so what is cut from it cannot be returned to
    each. Once the result is known:

        at an index that is not in the result   no contribution arrived: every rank keeps its own
                                                value, and what was cut is discarded
        at an index that is in the result       the rank that cut a partial sum keeps what it cut

    Nothing is lost then, and nothing counted twice. (The gTop-k release does the first half only;
    SparDL, section III-C, calls both global residual collection.)

    Args:
        own: This rank's message, before the first rounding.
    """

    def __init__(self, own: Sparse) -> None:
        self._own = own
        self._cuts: list[Sparse] = []

    def add(self, partial: Sparse) -> None:
        """Record ``partial`` as truncation or quantization error of this rank alone."""
        if len(partial.values):
            self._cuts.append(partial)

    def exchanged(self, contributions: Sequence[Sparse], result: Sparse) -> Exchanged:
        """Divide this rank's values into what was delivered and what returns to its memory.

        Args:
            contributions: Make up ``result``; no two have an index in common.
            result: The same as one message.
        """
        arrived, numel = indices_of(result), result.numel
        sent = self._own.at(contains(arrived, indices_of(self._own), numel))
        cuts = [part.at(contains(arrived, indices_of(part), numel)) for part in self._cuts]
        values = [part.values for part in cuts] or [result.values[:0]]
        indices = [indices_of(part) for part in cuts] or [arrived[:0]]
        error = Sparse(torch.cat(values), torch.cat(indices), numel)
        return Exchanged(contributions, error, sent, non_finite=starts_with_nan(contributions))
