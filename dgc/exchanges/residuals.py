"""What a worker keeps of an exchange that cuts on the way: the variants that SparDL compares.

(Zhao et al., ICDE 2024, section III-C.) Residuals are what was cut; in the procedure, where the
index arrived through others, or for good, where it is not in the result at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dgc.exchanges.base import Exchanged
from dgc.exchanges.blocks import Blocks
from dgc.sparse import Sparse, contains, gather, indices_of


class Residuals(ABC):
    """Decides what a memory forgets and takes back.

    loses: whether some of what was cut is kept by nobody.
    """

    loses = True

    @abstractmethod
    def settle(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """From the corrected gradient ``[n]``, what lies in the blocks at the end, and the sum."""


class GlobalResiduals(Residuals):
    """Everything that was cut anywhere, once (GRES).

    Where the result has an index, a worker keeps what lies in its blocks; elsewhere its own
    corrected gradient, since nobody's part arrived.
    """

    loses = False

    def settle(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """See :meth:`Residuals.settle`."""
        arrived = indices_of(result)
        ours = contains(blocks.taken(), arrived)
        # Where nothing of ours was taken, the memory still holds it: others' parts came on top.
        held = torch.where(ours, 0.0, corrected[arrived])
        left = blocks.at(arrived).values - held
        left_out = Sparse(left, arrived, result.numel)
        return Exchanged([result], left_out, gather(corrected, arrived[ours]))


class PartialResiduals(Residuals):
    """What is not in the result at all (PRES); what was cut of an index that is in it is lost."""

    def settle(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """See :meth:`Residuals.settle`."""
        return Exchanged([result], None, gather(corrected, indices_of(result)))


class LocalResiduals(Residuals):
    """What this worker did not send (LRES); what others cut of it later is lost."""

    def settle(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """See :meth:`Residuals.settle`."""
        return Exchanged([result], None, gather(corrected, blocks.taken()))
