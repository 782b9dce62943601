"""The kernels in plain PyTorch: the reference for the fused ones, and the fallback for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.ops.contract import Found, Step, Target, Update
from dgc.ops.rounding import draws, rounded
from dgc.sparse import Sparse

SMALLEST = 2.0**-149  # of the positive float32 numbers


def accumulate(accumulated: Tensor, update: Update, threshold: float, limit: int) -> Found:
    """Apply the update, then ``collect``: one pass over memory per operation."""
    u = update.momentum_buffer
    held = [accumulated] if u is None else [accumulated, u]
    into = update.into or held
    if update.rounding is None:
        add([new.copy_(old) for new, old in zip(into, held, strict=True)], update.gradient, update)
    else:
        wide = add([each.float() for each in held], update.gradient, update)
        both = draws(update.rounding, torch.arange(len(accumulated), device=accumulated.device))
        for new, each, draw in zip(into, wide, both, strict=False):
            new.copy_(rounded(each, draw))
    found = collect(into[0], threshold, limit)
    return found._replace(is_finite=finite([into[0]])) if update.into else found


def add(held: Sequence[Tensor], gradient: Tensor, update: Update) -> Sequence[Tensor]:
    """Add a gradient to float32 ``held``, v and u, in place; return ``held``.

    The order of operations in each rule is fixed, since the fused kernels round alike.
    """
    v, m = held[0], update.momentum
    if update.momentum_buffer is None:
        v.add_(gradient)
    elif update.nesterov:
        v.add_(held[1].add_(gradient).mul_(m)).add_(gradient)
    else:
        v.add_(held[1].mul_(m).add_(gradient))
    return held


def collect(values: Tensor, threshold: float, limit: int) -> Found:
    """Find the non-zero elements of ``values[n]`` of at least magnitude ``threshold``, and NaNs."""
    # Compared with <, a NaN is not below the threshold, so it is found. A number that is compared
    # with bfloat16 values would be rounded.
    below = values.float().abs() < max(threshold, SMALLEST)
    indices = below.logical_not_().nonzero().view(-1)
    first = indices[:limit]
    return Found(indices.numel(), first, values[first].float())


def sample(accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
    """Return float32 magnitudes at int64 ``positions[s]`` as they will be after the update."""
    u = update.momentum_buffer
    held = [accumulated] if u is None else [accumulated, u]
    gradient = update.gradient[positions].float()
    v = add([each[positions].float() for each in held], gradient, update)[0]
    if update.rounding is not None:
        v = rounded(v, draws(update.rounding, positions)[0]).float()
    return v.abs_()


def spread(pieces: Sequence[Tensor], contributions: Sequence[Sparse], scale: float) -> None:
    """Write ``scale · Σ contributions`` to ``pieces``, added in their order, in float32.

    Args:
        pieces: flat tensors of any floating-point type, whose concatenation is ``[n]``.
        contributions: messages of n elements.
        scale: a factor, such as 1 / world size.
    """
    # A single float32 piece is summed in place; otherwise the sum is made in float32 and copied.
    alone = len(pieces) == 1 and pieces[0].dtype == torch.float32
    if alone:
        total = pieces[0].zero_()
    else:
        numel, device = contributions[0].numel, pieces[0].device
        total = torch.zeros(numel, dtype=torch.float32, device=device)
    for contribution in contributions:
        contribution.add_to(total, alpha=scale)
    if not alone:
        fill(pieces, total)


def apply(
    targets: Sequence[Target],
    contributions: Sequence[Sparse],
    scale: float = 1.0,
    gradient: Tensor | None = None,
) -> None:
    """Update parameters as their optimizer would with the gradient ``scale · Σ contributions``.

    Args:
        targets: Parameters that lie one after another in ``[n]``.
        contributions: Sparse messages of n elements, added in their order.
        scale: A factor, such as 1 / world size.
        gradient: Float32 ``[n]``, in the place of the contributions.
    """
    parameters = [target.parameter.detach() for target in targets]
    gradients = [torch.zeros(parameter.numel(), dtype=torch.float32) for parameter in parameters]
    if gradient is None:
        spread(gradients, contributions, scale)
    else:
        gradients = [*gradient.split([len(each) for each in gradients])]
    for target, parameter, gradient in zip(targets, parameters, gradients, strict=True):
        update(parameter, gradient.view(parameter.shape), target)


def update(w: Tensor, g: Tensor, target: Target) -> None:
    """Take one ``Step``, by the operations of the optimizer's own ``step()`` in their order."""
    step, b, s = target.step, target.buffer, target.settings
    if step is Step.SCALED:
        w.mul_(s[0]).add_(g, alpha=s[1])
    elif step is Step.DECOUPLED:
        w.add_(g.add(w, alpha=s[1]), alpha=s[0])
    elif step is not Step.NONE:
        assert b is not None
        if step in (Step.DECAYED, Step.DECAYED_NESTEROV):
            decay = w * s[2]
            b.mul_(s[1]).add_(decay)
            decay = decay + b * s[1] if step is Step.DECAYED_NESTEROV else b
            w.sub_(decay * s[0]).sub_(g * s[0])
        else:
            h = g.add(w, alpha=s[3]) if s[3] else g
            b.mul_(s[1]).add_(h, alpha=s[2])
            w.add_(h.add(b, alpha=s[1]) if step is Step.NESTEROV else b, alpha=s[0])


def fill(pieces: Sequence[Tensor], flat: Tensor) -> None:
    """Copy ``flat[n]`` to ``pieces``, whose concatenation is ``[n]``."""
    for piece, source in zip(pieces, flat.split([len(p) for p in pieces]), strict=True):
        piece.copy_(source)


def finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all elements of all tensors are finite.

    A finite sum proves it in one reading pass; a sum that overflowed needs a second look. On a GPU,
    the host waits once for all sums.
    """
    sums = [tensor.sum(dtype=torch.float32) for tensor in tensors]
    together = len(sums) > 1 and len({each.device for each in sums}) == 1
    found = torch.stack(sums).tolist() if together else [float(each) for each in sums]
    return all(
        math.isfinite(total) or bool(tensor.isfinite().all())
        for total, tensor in zip(found, tensors, strict=True)
    )
