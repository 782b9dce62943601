"""What a model carries from one batch to the next, such as the hidden state of an LSTM.

The trainer asks no model what it is. A module that carries something has the three methods of
``Carrying``; the trainer lets it forget where a pass over data begins, and saves what it carries in
checkpoints within an epoch. It is of one rank, whose batches continue each other, and no buffer:
ranks neither average nor compare it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Carrying(Protocol):
    """A module whose output depends on the batches before. It detaches what it carries."""

    def forget(self) -> None:
        """Take the next batch for the beginning of its sequences."""

    def carried(self) -> list[Tensor]:
        """What the next batch will begin with; empty at the beginning."""

    def carry(self, tensors: list[Tensor]) -> None:
        """Continue with what ``carried`` returned."""


def carrying(model: nn.Module) -> list[Carrying]:
    """The modules of a model that carry something, in order."""
    return [module for module in model.modules() if isinstance(module, Carrying)]


def forget(model: nn.Module) -> None:
    """Begin new sequences in all modules of a model."""
    for module in carrying(model):
        module.forget()


@contextmanager
def fresh(model: nn.Module) -> Iterator[None]:
    """Begin new sequences, and forget them after the block, which may end with an exception."""
    forget(model)
    try:
        yield
    finally:
        forget(model)


def carried_by(model: nn.Module) -> list[list[Tensor]]:
    """What each module of a model carries."""
    return [module.carried() for module in carrying(model)]


def carry(model: nn.Module, state: list[list[Tensor]]) -> None:
    """Continue from ``carried_by`` of the same model."""
    for module, tensors in zip(carrying(model), state, strict=True):
        module.carry(tensors)
