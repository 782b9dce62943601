"""The kernels in plain PyTorch: the reference for the fused ones, and the fallback for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.ops.contract import Found, Update
from dgc.sparse import Sparse

SMALLEST = 2.0**-149  # of the positive float32 numbers


def accumulate(accumulated: Tensor, update: Update, threshold: float, limit: int) -> Found:
    """Apply the update in place, then ``collect``: one pass over memory per operation.

    The order of operations in each rule is fixed, since the fused kernels round alike.
    """
    gradient, u, m = update.gradient, update.momentum_buffer, update.momentum
    if u is None:
        accumulated.add_(gradient)
    elif update.nesterov:
        u.add_(gradient).mul_(m)
        accumulated.add_(u).add_(gradient)
    else:
        u.mul_(m).add_(gradient)
        accumulated.add_(u)
    return collect(accumulated, threshold, limit)


def collect(values: Tensor, threshold: float, limit: int) -> Found:
    """Find the non-zero elements of ``values[n]`` of at least magnitude ``threshold``, and NaNs."""
    # Compared with <, a NaN is not below the threshold, so it is found.
    below = values.abs() < max(threshold, SMALLEST)
    indices = below.logical_not_().nonzero().view(-1)
    first = indices[:limit]
    return Found(indices.numel(), first, values[first])


def sample(accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
    """Return float32 magnitudes at int64 ``positions[s]`` as they will be after the update."""
    gradient = update.gradient[positions].float()
    v = accumulated[positions]
    if update.momentum_buffer is None:
        return v.add_(gradient).abs_()
    u = update.momentum_buffer[positions]
    if update.nesterov:
        return v.add_(u.add_(gradient).mul_(update.momentum)).add_(gradient).abs_()
    return v.add_(u.mul_(update.momentum).add_(gradient)).abs_()


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


def fill(pieces: Sequence[Tensor], flat: Tensor) -> None:
    """Copy ``flat[n]`` to ``pieces``, whose concatenation is ``[n]``."""
    for piece, source in zip(pieces, flat.split([len(p) for p in pieces]), strict=True):
        piece.copy_(source)


def finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all elements of all tensors are finite.

    A finite sum proves it in one reading pass; a sum that overflowed needs a second look.
    """
    return all(
        bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())
        for tensor in tensors
    )
