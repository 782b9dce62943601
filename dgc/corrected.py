"""The corrected gradient of a bucket, computed as late as a search over it can do so."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from dgc import ops
from dgc.bucket_spec import BucketSpec
from dgc.ops import Found, Update


class NotFiniteError(ArithmeticError):
    """A pass over a gradient has met an infinity or a NaN, or a sum that is none; see
    ``Update.into``."""


class Corrected:
    """``corrected[n] = residual + gradient``.

    Where a fused kernel adds the gradient, the addition waits for the first ``search``, which then
    costs no pass over memory of its own.

    Args:
        residual: Float32 or bfloat16 ``[n]``, a memory's own storage.
        update: How the gradient is still to be added; ``None`` where it has been.
        state: Plain values that a compressor keeps for this bucket between steps.
        spec: What lies where in ``[n]``, for compressors that go by blocks; None for one block.
    """

    def __init__(
        self,
        residual: Tensor,
        update: Update | None = None,
        state: MutableMapping[str, Any] | None = None,
        spec: BucketSpec | None = None,
    ) -> None:
        self.spec = spec
        self.state: MutableMapping[str, Any] = {} if state is None else state
        self._residual = residual
        self._update = update
        self._kernels = ops.kernels(residual.device)

    @property
    def numel(self) -> int:
        """``n``."""
        return self._residual.numel()

    @property
    def device(self) -> torch.device:
        """Where the tensor lies."""
        return self._residual.device

    def magnitudes(self, positions: Tensor) -> Tensor:
        """Return ``|corrected|`` at int64 ``positions[s]``, float32 ``[s]``; change nothing."""
        if self._update is None:
            return self._residual[positions].float().abs()
        return self._kernels.sample(self._residual, self._update, positions)

    def search(self, threshold: float, limit: int) -> Found:
        """Return the elements at or above ``threshold``, in order of position, without zeros.

        Raises:
            NotFiniteError: Where the first search writes the sum elsewhere, and not all of it is
                finite.
        """
        if self._update is None:
            return self._kernels.collect(self._residual, threshold, limit)
        update, self._update = self._update, None
        found = self._kernels.accumulate(self._residual, update, threshold, limit)
        if not found.is_finite:
            raise NotFiniteError
        if update.into:
            self._residual = update.into[0]
        return found

    def materialize(self) -> Tensor:
        """Return all of it, float32 ``[n]``: the memory's own storage, or of bfloat16 a copy."""
        if self._update is not None:
            self.search(torch.inf, 0)
        return self._residual.float()
