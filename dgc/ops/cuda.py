"""The kernels in Triton, for NVIDIA's GPUs.

One pass updates a memory, compares it with the threshold and counts. A program that found something
reserves room in a list with one atomic addition, and writes there; the host waits for the total
alone. Programs come in any order, and so do their parts of the list, which is sorted by position.

Where the list has no room for all, what it holds depends on that order, and is thrown away: the sum
of the counts of all programs before it tells each one where its elements belong, and a second pass
reads again what lies before the limit. So the answer is the same every time.

Every operation is rounded on its own, as PyTorch does: see OPTIONS.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dgc.ops.contract import FUSED_TYPES, Found, Update
from dgc.ops.reference import finite, spread

__all__ = ['accumulate', 'collect', 'finite', 'sample', 'spread']

BLOCK = 1024  # elements of a program
# Without fusion a product and a sum are two instructions, not one that rounds once.
OPTIONS = {'block': BLOCK, 'enable_fp_fusion': False}


def accumulate(accumulated: Tensor, update: Update, threshold: float, limit: int) -> Found:
    """Update, compare and collect in one pass over memory."""
    return _search(accumulated, update, threshold, limit)


def collect(values: Tensor, threshold: float, limit: int) -> Found:
    """One reading pass."""
    return _search(values.contiguous(), None, threshold, limit)


def sample(accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
    """Reads at ``positions`` alone, which are trusted to lie within."""
    gradient, u, momentum, nesterov = _arguments(accumulated, update)
    positions = positions.contiguous()
    magnitudes = torch.empty(positions.numel(), dtype=torch.float32, device=accumulated.device)
    with torch.cuda.device_of(accumulated):
        _sample_kernel[_grid(positions.numel())](
            gradient, u, accumulated, positions, magnitudes, positions.numel(), momentum,
            nesterov=nesterov, **OPTIONS,
        )  # fmt: skip
    return magnitudes


def _search(v: Tensor, update: Update | None, threshold: float, limit: int) -> Found:
    """What of ``v[n]`` is at or above the threshold, once the update, if any, is made."""
    gradient, u, momentum, nesterov = _arguments(v, update)
    n, device = v.numel(), v.device
    grid, lowest, room = _grid(n), _lowest_wanted(threshold), min(limit, n)
    found = torch.zeros(1, dtype=torch.int64, device=device)
    counts = torch.empty(grid[0], dtype=torch.int32, device=device)
    indices = torch.empty(room, dtype=torch.int64, device=device)
    values = torch.empty(room, dtype=torch.float32, device=device)
    with torch.cuda.device_of(v):
        _search_kernel[grid](
            gradient, u, v, n, momentum, lowest, room, found, counts, indices, values,
            nesterov=nesterov, **OPTIONS,
        )  # fmt: skip
        total = int(found)  # the host waits here
        if total <= room:
            indices, order = indices[:total].sort()
            return Found(total, indices, values[order])
        if room:
            starts = counts.cumsum(0, dtype=torch.int64).sub_(counts)
            _first_kernel[grid](v, n, lowest, room, starts, indices, values, **OPTIONS)
    return Found(total, indices, values)


def _grid(count: int) -> tuple[int]:
    """One program for each block of ``count`` elements."""
    return (triton.cdiv(count, BLOCK),)


def _lowest_wanted(threshold: float) -> int:
    """The bits of the smallest magnitude that is wanted: never those of 0.

    Magnitudes compare as their bits do, and a NaN as the largest of all.
    """
    bits = torch.tensor(max(threshold, 0.0), dtype=torch.float32).view(torch.int32)
    return max(int(bits), 1)


def _arguments(
    v: Tensor, update: Update | None
) -> tuple[Tensor | None, Tensor | None, float, bool]:
    """Checked, since a kernel would write beyond the end of what is too short."""
    _check('values', v, v, torch.float32)
    if update is None:
        return None, None, 0.0, False
    gradient, u = update.gradient.contiguous(), update.momentum_buffer
    _check('gradient', gradient, v, *FUSED_TYPES)
    if u is None:
        return gradient, None, 0.0, False
    _check('momentum_buffer', u, v, torch.float32)
    return gradient, u, float(update.momentum), update.nesterov


def _check(name: str, tensor: Tensor, like: Tensor, *dtypes: torch.dtype) -> None:
    flat = tensor.dim() == 1 and tensor.is_contiguous()
    alike = tensor.shape == like.shape and tensor.device == like.device
    if not (flat and alike and tensor.dtype in dtypes):
        names = ' or '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)
        raise ValueError(
            f'dgc: {name} must be flat, contiguous, {names}, with {like.numel()} elements on '
            f'{like.device}, got {tensor.dtype} {list(tensor.shape)} on {tensor.device}'
        )


# In the kernels gradient[n], u[n] and v[n] are pointers, and the first two are None where the rule
# has none. Positions are int64, for tensors of more than 2³¹ elements.


@triton.jit(do_not_specialize=['momentum', 'lowest', 'limit'])
def _search_kernel(
    gradient, u, v, n, momentum, lowest, limit, found, counts, indices, values,
    nesterov: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Update and collect one block; found[1] is the total, counts[programs] its parts."""
    program = tl.program_id(0)
    first = program.to(tl.int64) * block
    if first + block <= n:  # without a mask, memory is read in vectors whatever n is
        accumulated = _take_in(gradient, u, v, first, None, momentum, nesterov, block)
    else:
        inside = tl.arange(0, block) < n - first
        accumulated = _take_in(gradient, u, v, first, inside, momentum, nesterov, block)
    wanted = _is_wanted(accumulated, lowest)
    count = tl.sum(wanted)
    tl.store(counts + program, count)
    if count > 0:
        start = tl.atomic_add(found, count.to(tl.int64), sem='relaxed')
        _write(accumulated, wanted, first, start, limit, indices, values, block)


@triton.jit(do_not_specialize=['lowest', 'limit'])
def _first_kernel(
    v, n, lowest, limit, starts, indices, values,
    block: tl.constexpr,
):  # fmt: skip
    """Collect one block, in a list where starts[programs] says; nothing at or after the limit."""
    program = tl.program_id(0)
    start = tl.load(starts + program)
    if start < limit:
        first = program.to(tl.int64) * block
        lanes = tl.arange(0, block)
        accumulated = tl.load(v + first + lanes, mask=lanes < n - first, other=0.0)
        _write(
            accumulated,
            _is_wanted(accumulated, lowest),
            first,
            start,
            limit,
            indices,
            values,
            block,
        )


@triton.jit(do_not_specialize=['count', 'momentum'])
def _sample_kernel(
    gradient, u, v, positions, magnitudes, count, momentum,
    nesterov: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """magnitudes[count] of v at positions[count], as they will be after the update."""
    lanes = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = lanes < count
    at = tl.load(positions + lanes, mask=inside, other=0)
    g = _widened(tl.load(gradient + at, mask=inside, other=0.0))
    accumulated = tl.load(v + at, mask=inside, other=0.0)
    if u is None:
        accumulated = accumulated + g
    else:
        velocity = tl.load(u + at, mask=inside, other=0.0)
        velocity, accumulated = _updated(g, velocity, accumulated, momentum, nesterov)
    tl.store(magnitudes + lanes, tl.abs(accumulated), mask=inside)


@triton.jit
def _take_in(
    gradient, u, v, first, inside, momentum,
    nesterov: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One block of v once its gradient, if any, is taken in; 0 outside."""
    lanes = tl.arange(0, block)
    accumulated = _load(v + first + lanes, inside)
    if gradient is not None:
        g = _widened(_load(gradient + first + lanes, inside))
        if u is None:
            accumulated = accumulated + g
        else:
            velocity = _load(u + first + lanes, inside)
            velocity, accumulated = _updated(g, velocity, accumulated, momentum, nesterov)
            tl.store(u + first + lanes, velocity, mask=inside)
        tl.store(v + first + lanes, accumulated, mask=inside)
    return accumulated


@triton.jit
def _load(pointers, inside):
    """A block; 0 outside. No mask, no value for what it leaves out."""
    if inside is None:
        block = tl.load(pointers)
    else:
        block = tl.load(pointers, mask=inside, other=0.0)
    return block


@triton.jit
def _widened(gradient):
    """As float32. A bfloat16 is the upper half of one, which old GPUs cannot convert."""
    if gradient.dtype == tl.bfloat16:
        bits = gradient.to(tl.int16, bitcast=True).to(tl.int32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    else:
        wide = gradient.to(tl.float32)
    return wide


@triton.jit
def _updated(g, u, v, momentum, nesterov: tl.constexpr):
    """u and v by the rules of Update."""
    if nesterov:
        u = (u + g) * momentum
        v = v + u + g
    else:
        u = u * momentum + g
        v = v + u
    return u, v


@triton.jit
def _is_wanted(values, lowest):
    """1 where a magnitude is at or above the threshold, else 0."""
    magnitudes = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return (magnitudes >= lowest).to(tl.int32)


@triton.jit
def _write(
    accumulated, wanted, first, start, limit, indices, values,
    block: tl.constexpr,
):  # fmt: skip
    """What is wanted of a block, in order, from place ``start`` of the list up to its end."""
    places = start + tl.cumsum(wanted) - wanted
    here = (wanted != 0) & (places < limit)
    tl.store(indices + places, first + tl.arange(0, block), mask=here)
    tl.store(values + places, accumulated, mask=here)
