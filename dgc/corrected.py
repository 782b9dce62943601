"""The corrected gradient of a bucket, which a threshold can be searched for while it is made."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc import ops
from dgc.ops import Found, Update


class Corrected:
    """``corrected[n]``: what was kept back, with this step's gradient taken in.

    Where a fused kernel does that, it waits for the first ``search``, and costs no pass of its own.

    kept: float32 ``[n]``, what a memory keeps back; its own storage.
    update: how the gradient is still to be taken in; ``None`` where it has been.
    name: of the bucket, for what a compressor remembers of it.
    """

    def __init__(self, kept: Tensor, update: Update | None = None, name: str = '') -> None:
        self.name = name
        self._kept = kept
        self._update = update
        self._kernels = ops.kernels(kept.device)

    @property
    def numel(self) -> int:
        """``n``."""
        return self._kept.numel()

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._kept.device

    def magnitudes(self, positions: Tensor) -> Tensor:
        """``|corrected|`` at int64 ``positions[s]``, float32 ``[s]``; takes nothing in."""
        if self._update is None:
            return self._kept[positions].abs()
        return self._kernels.sample(self._kept, self._update, positions)

    def search(self, threshold: float, limit: int) -> Found:
        """What is at or above ``threshold``, in order of position; see Found. Zeros never are."""
        if self._update is None:
            return self._kernels.collect(self._kept, threshold, limit)
        update, self._update = self._update, None
        return self._kernels.accumulate(self._kept, update, threshold, limit)

    def whole(self) -> Tensor:
        """All of it, float32 ``[n]``, in the memory's own storage."""
        if self._update is not None:
            self.search(torch.inf, 0)
        return self._kept
