"""Optimizers that evaluate a closure several times per step, such as ``torch.optim.LBFGS``.

They compare losses and gradients of one step's evaluations, so all ranks must see the same ones: an
evaluation is an exchange of its own, and its loss is the mean over the ranks.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dgc.composition import Composition
from dgc.engines.base import Engine


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether ``step()`` of an optimizer has to be given a closure."""
    closure = inspect.signature(type(optimizer).step).parameters.get('closure')
    return closure is not None and closure.default is inspect.Parameter.empty


def check_evaluations(optimizer: Optimizer, composition: Composition) -> None:
    """Raise ValueError where an optimizer evaluates closures and the composition cannot serve it;
    warn of one that compresses."""
    if not needs_closure(optimizer):
        return
    name = type(optimizer).__name__
    if composition.nonfinite == 'skip':
        raise ValueError(
            f"nonfinite='skip' skips whole steps, and {name} evaluates its closure several times "
            "in one: use nonfinite='stop'"
        )
    if not composition.schedule.is_uncompressed:
        warnings.warn(
            f'{name} compares the gradients of one evaluation with those of another, which '
            'compression makes incomparable, so that training may stall or diverge: use '
            'dgc.dense(), or another optimizer',
            stacklevel=3,
        )


def refuse_closures(optimizer: Optimizer, reason: str, remedy: str) -> None:
    """Raise ValueError for an optimizer that evaluates closures.

    Args:
        optimizer: Any.
        reason: Why it cannot be used.
        remedy: What to do instead.
    """
    if needs_closure(optimizer):
        raise ValueError(
            f'{type(optimizer).__name__} evaluates a closure several times per step, {reason}: '
            f'{remedy}'
        )


def mean_loss(engine: Engine, loss: Any, device: torch.device | str) -> Tensor:
    """Return the mean over the ranks of a closure's loss, float64 and the same on all ranks.

    Args:
        engine: Sums it.
        loss: A number, or a tensor of one element.
        device: Of the tensors that the engine carries.
    """
    value = loss.item() if isinstance(loss, Tensor) else float(loss)
    ours = torch.tensor([value], dtype=torch.float64, device=device)
    return engine.all_reduce(ours).div_(engine.size)[0]
