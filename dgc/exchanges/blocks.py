"""One worker's share of a sum that is cut block by block: SparDL's dense local blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.sparse import Sparse, gather, indices_of


class Blocks:
    """A flat tensor ``[n]`` in ``m`` blocks: what is still to be sent, or will stay.

    It begins as the corrected gradient. What is taken out of a block travels; what others send is
    added, and competes with what was not sent yet. At the end, what lies here is what this worker
    has cut of the sums that passed it, its own part included.

    flat: float32 ``[n]``, changed in place.
    count: ``m``; a block of ``n/m`` elements keeps ``limit``, at least one.
    compressor: chooses what is taken out of a block.
    name: of the bucket, by which a compressor remembers each block.
    """

    def __init__(
        self, flat: Tensor, count: int, k: int, compressor: Compressor, name: str = ''
    ) -> None:
        self.flat = flat
        self.limit = max(-(-k // count), 1)
        self._count = count
        self._compressor = compressor
        self._name = name
        self._taken: list[Tensor] = []

    def take(self, block: int) -> Sparse:
        """The largest of a block, at most ``limit``, no longer in it."""
        numel = self.flat.numel()
        begin, end = (number * numel // self._count for number in (block, block + 1))
        # Half an element less: the product of a rounded ratio is rounded up.
        ratio = min((self.limit - 0.5) / max(end - begin, 1), 1.0)
        corrected = Corrected(self.flat[begin:end], name=f'{self._name}, block {block}')
        chosen = self._compressor.select(corrected, ratio)
        indices = indices_of(chosen) + begin
        self.flat.index_fill_(0, indices, 0.0)
        self._taken.append(indices)
        return Sparse(chosen.values, indices, numel)

    def add(self, sparse: Sparse, holders: int = 1) -> None:
        """Take in what another worker sent, or back what was cut; ``1/holders`` of it where so
        many workers hold and cut the same."""
        sparse.add_to(self.flat, alpha=1 / holders)

    def taken(self) -> Tensor:
        """Where anything was taken, int64, ascending."""
        return torch.unique(torch.cat(self._taken))

    def at(self, indices: Tensor) -> Sparse:
        """What lies at ``indices`` now."""
        return gather(self.flat, indices)
