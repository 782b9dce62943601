"""The kernels in plain PyTorch: the fast ones are tested against them, and may be missing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.ops.contract import Found, Update
from dgc.sparse import Sparse

SMALLEST = 2.0**-149  # of the positive float32 numbers


def accumulate(accumulated: Tensor, update: Update, threshold: float, limit: int) -> Found:
    """Take the gradient in, then ``collect``: one pass for each operation."""
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
    """Elements of ``values[n]`` whose magnitude is at least ``threshold``, and not 0; every NaN."""
    below = values.abs() < max(threshold, SMALLEST)
    indices = below.logical_not_().nonzero().view(-1)
    first = indices[:limit]
    return Found(indices.numel(), first, values[first])


def sample(accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
    """Magnitudes at ``positions[s]`` once the gradient is taken in."""
    gradient = update.gradient[positions].float()
    v = accumulated[positions]
    if update.momentum_buffer is None:
        return v.add_(gradient).abs_()
    u = update.momentum_buffer[positions]
    if update.nesterov:
        return v.add_(u.add_(gradient).mul_(update.momentum)).add_(gradient).abs_()
    return v.add_(u.mul_(update.momentum).add_(gradient)).abs_()


def spread(pieces: Sequence[Tensor], parts: Sequence[Sparse], scale: float) -> None:
    """``pieces ← scale · Σ parts``, added in their order, in float32. The pieces are flat tensors
    that make ``[n]`` one after another."""
    alone = len(pieces) == 1 and pieces[0].dtype == torch.float32
    total = pieces[0].zero_() if alone else torch.zeros(parts[0].numel, device=pieces[0].device)
    for part in parts:
        part.add_to(total, alpha=scale)
    if not alone:
        fill(pieces, total)


def fill(pieces: Sequence[Tensor], flat: Tensor) -> None:
    """``pieces ← flat[n]``, of which each takes its part."""
    for piece, its in zip(pieces, flat.split([len(p) for p in pieces]), strict=True):
        piece.copy_(its)


def finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no element of any of them is infinite or NaN: one reading pass in the usual case."""
    return all(
        bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())
        for tensor in tensors
    )
