"""Who takes back what, where an exchange cuts sums on their way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dgc.exchanges.base import Exchanged
from dgc.sparse import Sparse, contains, indices_of


class Ledger:
    """What one worker sent, and the partial sums that went no further than to it.

    A partial sum holds many workers' parts, so what is cut from it cannot be returned to each.
    Once the result is known: at an index that is not in it nobody's part arrived, so every worker
    still keeps its own, and what was cut is void; at an index that is in it, whatever was cut on
    the way is kept by who cut it. Nothing is lost then, and nothing counted twice. (The gTop-k
    release does the first half only; SparDL, section III-C, calls both global residual collection.)

    own: this worker's message, as it was before the first rounding.
    """

    def __init__(self, own: Sparse) -> None:
        self._own = own
        self._cuts: list[Sparse] = []

    def cut(self, partial: Sparse) -> None:
        """This worker, and no other, has cut ``partial``, or rounded it off."""
        if len(partial.values):
            self._cuts.append(partial)

    def settle(self, parts: Sequence[Sparse], result: Sparse) -> Exchanged:
        """parts: that make up ``result``, which have no index in common."""
        arrived = indices_of(result)
        sent = self._own.at(contains(arrived, indices_of(self._own)))
        cuts = [part.at(contains(arrived, indices_of(part))) for part in self._cuts]
        values = [part.values for part in cuts] or [result.values[:0]]
        indices = [indices_of(part) for part in cuts] or [arrived[:0]]
        return Exchanged(parts, Sparse(torch.cat(values), torch.cat(indices), result.numel), sent)
