"""The interface of a value coding, and what it guarantees about its quantization error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT32_MAX = torch.finfo(torch.float32).max
FLOAT32_TINY = torch.finfo(torch.float32).tiny  # the smallest normal number
SCALE = 4  # bytes of a scale, a float32


@dataclass(frozen=True)
class Contraction:
    """A biased coding Q, whose error needs error feedback: ``‖x − Q(x)‖² ≤ (1 − delta)·‖x‖²``.

    The bound is what error feedback converges under (Karimireddy et al. 2019, assumption A). It
    holds for finite x whose blocks each reach 1e-30 in magnitude, or are zero: below, steps and
    scales underflow and the error is bounded by an absolute 2^-126 per value instead.

    Args:
        delta: above 0, and 1 for a coding without error.
    """

    delta: float


@dataclass(frozen=True)
class Unbiased:
    """A stochastic coding Q with ``E Q(x) = x`` and ``E ‖x − Q(x)‖² ≤ omega·‖x‖²``.

    It is used without error feedback, or with it after scaling Q(x) by ``1 / (1 + omega)``, which
    makes it a contraction. The bound holds for the same x as that of ``Contraction``.

    Args:
        omega: the variance, relative to ``‖x‖²``.
    """

    omega: float


class ValueCoding(ABC):
    """Writes float32 values as bytes, rounded as the coding defines.

    A decoded value is never infinite. A NaN at any place decodes to a NaN at that place: a rank
    whose gradient is not finite sends one so that all ranks stop (``dgc/nonfinite.py``).

    Attributes:
        name: as in settings.
        code: as in the header of a message.
        error: what is guaranteed about the quantization error.
    """

    name: str
    code: int
    error: Contraction | Unbiased

    @abstractmethod
    def capacity(self, k: int) -> int:
        """Return the bytes of ``k`` values; does not decrease with ``k``."""

    @abstractmethod
    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """Write float32 ``[k]`` as uint8 ``[capacity(k)]``.

        Args:
            seed: of the random numbers of a stochastic coding; the same values and seed give the
                same bytes. Other codings ignore it.
        """

    @abstractmethod
    def decode(self, section: Tensor, count: int) -> Tensor:
        """Read float32 ``[count]``, in new storage, from uint8 ``[capacity(count)]``.

        Raises:
            CodecError: a scale is negative or infinite, or zero where the coding writes none.
        """
