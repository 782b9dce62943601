"""The interface of a set of kernels: its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dgc.ops.rounding import Keys
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
        momentum_buffer: ``u``, of the type of ``v``, ``[n]``, updated in place; or ``None``.
        momentum: ``m``.
        nesterov: whether the third rule is used, given a momentum buffer.
        into: ``[n]``, of the type of ``v`` and apart from all others: ``v``, and ``u`` where there
            is one, are written there, and the present ones stay as they are. Empty to update in
            place.
        rounding: Where ``u`` and ``v`` are bfloat16, the keys of the random numbers by which the
            results, computed in float32, are rounded (``dgc.ops.rounding``); else ``None``.
    """

    gradients: Sequence[Tensor]
    momentum_buffer: Tensor | None = None
    momentum: float = 0.0
    nesterov: bool = False
    into: Sequence[Tensor] = ()
    rounding: Keys | None = None

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
        is_finite: of an update that is written elsewhere, whether all of the result is; where not,
            nothing else is of use. Otherwise True.
    """

    total: int
    indices: Tensor
    values: Tensor
    is_finite: bool = True


class Step(IntEnum):
    """An optimizer's update of a parameter ``w`` with its gradient ``g``.

    ``b`` is a buffer of its shape, and ``s0``, ``s1``, … are settings.

        NONE               nothing: the parameter took no part in the step
        SCALED             w ← s0·w + s1·g
        DECAYED            b ← s1·b + s2·w,  w ← w − s0·b − s0·g
        DECAYED_NESTEROV   b ← s1·b + s2·w,  w ← w − s0·(s2·w + s1·b) − s0·g
        MOMENTUM           h = g + s3·w,  b ← s1·b + s2·h,  w ← w + s0·b
        NESTEROV           h = g + s3·w,  b ← s1·b + s2·h,  w ← w + s0·(h + s1·b)
        DECOUPLED          w ← w + s0·(g + s1·w)
    """

    NONE = 0
    SCALED = 1
    DECAYED = 2
    DECAYED_NESTEROV = 3
    MOMENTUM = 4
    NESTEROV = 5
    DECOUPLED = 6

    @property
    def has_buffer(self) -> bool:
        """Whether there is a ``b``."""
        return self not in (Step.NONE, Step.SCALED, Step.DECOUPLED)

    @property
    def example(self) -> tuple[float, ...]:
        """Settings such as occur in training."""
        return {
            Step.NONE: (),
            Step.SCALED: (0.997, -0.07),
            Step.DECAYED: (0.07, 0.9, 0.003),
            Step.DECAYED_NESTEROV: (0.07, 0.9, 0.003),
            Step.MOMENTUM: (-0.07, 0.9, 0.97, 0.003),
            Step.NESTEROV: (-0.07, 0.9, 1.0, 0.003),
            Step.DECOUPLED: (-0.07, 0.003),
        }[self]


class Target(NamedTuple):
    """A parameter of a bucket, and how an optimizer updates it.

    Attributes:
        parameter: ``w``.
        step: Which update.
        buffer: ``b``; None where the step has none.
        settings: ``s0``, ``s1``, … of the step.
    """

    parameter: Tensor
    step: Step
    buffer: Tensor | None = None
    settings: Sequence[float] = ()


class Kernels(Protocol):
    """A module with these functions, whose results equal those of ``dgc.ops.reference``.

    ``accumulated`` is the residual ``v`` of :class:`Update`, float32 or bfloat16 ``[n]``; so are
    the ``values`` that ``collect`` searches.
    """

    __name__: str

    def accumulate(
        self, accumulated: Tensor, update: Update, threshold: float, limit: int
    ) -> Found:
        """Apply the update, and find the elements then at or above the threshold."""

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
