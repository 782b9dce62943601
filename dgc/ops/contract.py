"""What every set of kernels is given, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dgc.sparse import Sparse

FUSED_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # of gradients


class Update(NamedTuple):
    """How a memory takes a gradient ``g`` into what it keeps, ``v``.

        without a momentum buffer    v ← v + g
        with one, u                  u ← m·u + g,    v ← v + u
        with Nesterov's momentum     u ← m·(u + g),  v ← v + u + g

    gradients: ``g`` in pieces, flat tensors that make ``[n]`` one after another; all of them
        float32, bfloat16 or float16.
    momentum_buffer: ``u``, float32 ``[n]``, updated in place; or ``None``.
    momentum: ``m``.
    """

    gradients: Sequence[Tensor]
    momentum_buffer: Tensor | None = None
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def gradient(self) -> Tensor:
        """``g[n]``: a copy, unless it is in one piece."""
        return self.gradients[0] if len(self.gradients) == 1 else torch.cat([*self.gradients])


class Found(NamedTuple):
    """Elements whose magnitude is at or above a threshold. A NaN counts as above any.

    total: how many there are.
    indices: int64, ascending: where the first of them are, ``limit`` at most.
    values: float32, the same elements.
    """

    total: int
    indices: Tensor
    values: Tensor


class Kernels(Protocol):
    """A set of kernels; each is a module with these functions, described in ``reference``."""

    __name__: str

    def accumulate(
        self, accumulated: Tensor, update: Update, threshold: float, limit: int
    ) -> Found:
        """Take the gradient in, and find what is then at or above the threshold."""

    def collect(self, values: Tensor, threshold: float, limit: int) -> Found:
        """Find what is at or above the threshold, changing nothing."""

    def sample(self, accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
        """Magnitudes as they will be once the gradient is taken in, changing nothing."""

    def spread(self, pieces: Sequence[Tensor], parts: Sequence[Sparse], scale: float) -> None:
        """``pieces ← scale · Σ parts``, in the order of the parts."""

    def finite(self, tensors: Sequence[Tensor]) -> bool:
        """Whether no element of any of them is infinite or NaN."""
