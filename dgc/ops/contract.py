"""The interface of a set of kernels: its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dgc.sparse import Sparse

FUSED_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # of gradients


def is_aligned(tensor: Tensor) -> bool:
    """Return whether the elements lie at multiples of their size, as C++ needs it; those of
    ``torch.frombuffer(data, offset=1)`` do not."""
    return tensor.data_ptr() % tensor.dtype.itemsize == 0


class Update(NamedTuple):
    """How a memory adds a gradient ``g`` to its accumulated residual ``v``.

        without a momentum buffer    v ← v + g
        with one, u                  u ← m·u + g,    v ← v + u
        with Nesterov's momentum     u ← m·(u + g),  v ← v + u + g

    The last two are momentum correction (Lin et al. 2018, section 3.2).

    Attributes:
        gradients: ``g`` in pieces: flat tensors, all float32, bfloat16 or float16, whose
            concatenation is ``g[n]``.
        momentum_buffer: ``u``, float32 ``[n]``, updated in place; or ``None``.
        momentum: ``m``.
        nesterov: whether the third rule is used, given a momentum buffer.
    """

    gradients: Sequence[Tensor]
    momentum_buffer: Tensor | None = None
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def gradient(self) -> Tensor:
        """``g[n]``; a copy where it has more than one piece."""
        return self.gradients[0] if len(self.gradients) == 1 else torch.cat([*self.gradients])


class Found(NamedTuple):
    """The elements whose magnitude is at or above a threshold. A NaN counts as above any.

    Attributes:
        total: the number of them, also where that is more than ``limit``.
        indices: int64 ``[min(total, limit)]``, ascending: the positions of the first ones.
        values: float32, the elements at these positions.
    """

    total: int
    indices: Tensor
    values: Tensor


class Kernels(Protocol):
    """A module with these functions, whose results equal those of ``dgc.ops.reference``.

    ``accumulated`` is the residual ``v`` of :class:`Update`, float32 ``[n]``.
    """

    __name__: str

    def accumulate(
        self, accumulated: Tensor, update: Update, threshold: float, limit: int
    ) -> Found:
        """Apply the update in place, and find the elements then at or above the threshold."""

    def collect(self, values: Tensor, threshold: float, limit: int) -> Found:
        """Find the elements at or above the threshold. Reads only."""

    def sample(self, accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
        """Return the magnitudes at int64 ``positions[s]`` after the update. Reads only."""

    def spread(
        self, pieces: Sequence[Tensor], contributions: Sequence[Sparse], scale: float
    ) -> None:
        """Compute ``pieces ← scale · Σ contributions``, added in their order."""

    def finite(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether all elements of all tensors are finite."""
