"""Which truncation errors return to the memories: the variants that SparDL compares.

(Zhao et al., ICDE 2024, section III-C.) In-procedure residuals were cut at an index that arrived
through other ranks; end-procedure residuals at an index that is not in the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dgc.exchanges.base import Exchanged, starts_with_nan
from dgc.exchanges.blocks import Blocks
from dgc.sparse import Sparse, contains, gather, indices_of


class Residuals(ABC):
    """Decides what leaves a memory and what returns to it.

    Attributes:
        loses: Some of what was cut returns to no memory.
    """

    loses = True

    @abstractmethod
    def exchanged(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """Compute what was delivered, and the error.

        Args:
            corrected: The corrected gradient ``[n]``.
            blocks: What was not passed on, at the end of the exchange.
            result: The sum.
        """


class GlobalResiduals(Residuals):
    """Everything that was cut anywhere, exactly once (GRES).

    Where the result has an index, a rank keeps what lies in its blocks; elsewhere its own corrected
    gradient, since no contribution arrived.
    """

    loses = False

    def exchanged(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """See ``Residuals.exchanged``."""
        arrived = indices_of(result)
        ours = contains(blocks.taken(), arrived, result.numel)
        # Where nothing of this rank's was taken, its memory still holds the value, and the block
        # holds it plus other ranks' contributions.
        held = torch.where(ours, 0.0, corrected[arrived])
        error = Sparse(blocks.at(arrived).values - held, arrived, result.numel)
        return delivered(result, gather(corrected, arrived[ours]), error)


class PartialResiduals(Residuals):
    """End-procedure residuals only (PRES); what was cut at an index of the result is lost."""

    def exchanged(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """See ``Residuals.exchanged``."""
        return delivered(result, gather(corrected, indices_of(result)))


class LocalResiduals(Residuals):
    """What this rank did not send (LRES); what others cut from it later is lost."""

    def exchanged(self, corrected: Tensor, blocks: Blocks, result: Sparse) -> Exchanged:
        """See ``Residuals.exchanged``."""
        return delivered(result, gather(corrected, blocks.taken()))


def delivered(result: Sparse, sent: Sparse, error: Sparse | None = None) -> Exchanged:
    """Return an exchange whose only contribution is ``result``."""
    return Exchanged([result], error, sent, non_finite=starts_with_nan([result]))
