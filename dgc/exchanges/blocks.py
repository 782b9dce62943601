"""One rank's part of a sum that is cut block by block: SparDL's dense local blocks."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.sparse import Sparse, gather, indices_of


class Blocks:
    """A flat tensor ``[n]`` in ``m`` blocks: what has not been passed on.

    It begins as the corrected gradient. What is taken out of a block is sent; what other ranks send
    is added, and competes with what was not sent yet. At the end it holds what this rank has cut
    from the sums that passed it, its own contribution included.

    Args:
        flat: Float32 ``[n]``, changed in place.
        count: ``m``.
        k: Elements of all blocks together; each of ``n/m`` elements keeps ``limit = ⌈k/m⌉``.
        compressor: Selects what is taken out of a block.
        states: Plain values that the compressor keeps between steps, by block.
    """

    def __init__(
        self,
        flat: Tensor,
        count: int,
        k: int,
        compressor: Compressor,
        states: MutableMapping[str, Any] | None = None,
    ) -> None:
        self.flat = flat
        self.limit = max(-(-k // count), 1)
        self._count = count
        self._compressor = compressor
        self._states: MutableMapping[str, Any] = {} if states is None else states
        self._taken: list[Tensor] = []

    def take(self, block: int) -> Sparse:
        """Remove the largest elements of a block, at most ``limit``, and return them."""
        numel = self.flat.numel()
        begin, end = (number * numel // self._count for number in (block, block + 1))
        # Half an element less: keep() rounds up, and the quotient may have been rounded up too.
        density = min((self.limit - 0.5) / max(end - begin, 1), 1.0)
        state = self._states.setdefault(str(block), {})
        chosen = self._compressor.select(Corrected(self.flat[begin:end], state=state), density)
        indices = indices_of(chosen) + begin
        self.flat.index_fill_(0, indices, 0.0)
        self._taken.append(indices)
        return Sparse(chosen.values, indices, numel)

    def add(self, sparse: Sparse, holders: int = 1) -> None:
        """Add what another rank sent, or what was cut.

        Args:
            sparse: The elements.
            holders: The number of ranks that hold and cut the same; each keeps an equal part.
        """
        sparse.add_to(self.flat, alpha=1 / holders)

    def taken(self) -> Tensor:
        """Return the indices at which elements were taken, int64, ascending."""
        return torch.unique(torch.cat(self._taken))

    def at(self, indices: Tensor) -> Sparse:
        """Return the elements that lie at ``indices`` now."""
        return gather(self.flat, indices)
