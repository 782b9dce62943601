"""The kernels in Triton, for NVIDIA GPUs.

One pass updates a memory's buffers, compares the result with the threshold and counts. A program
that found elements reserves room for them in a list with one atomic addition and writes them there;
the host synchronizes once, to read the total. Programs run in any order, so the host then sorts the
list by position, which makes the result deterministic.

Where the list has no room for all, its content depends on the order of the programs and is
discarded. The exclusive prefix sum of the programs' counts then gives each its place in the list,
and a second pass collects the elements that lie before the limit.

Each operation is rounded on its own, as in PyTorch, so that results equal the reference bit for
bit: see OPTIONS.
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

BLOCK = 1024  # elements per program
# Fusion would turn a product and a sum into one instruction that rounds once.
OPTIONS = {'block': BLOCK, 'enable_fp_fusion': False}


def accumulate(accumulated: Tensor, update: Update, threshold: float, limit: int) -> Found:
    """Compute ``reference.accumulate`` in one pass over memory."""
    return _search(accumulated, update, threshold, limit)


def collect(values: Tensor, threshold: float, limit: int) -> Found:
    """Compute ``reference.collect`` in one reading pass."""
    return _search(values.contiguous(), None, threshold, limit)


def sample(accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
    """Compute ``reference.sample``, reading only ``positions``, whose bounds are not checked."""
    gradient, u, momentum, nesterov = _arguments(accumulated, update)
    first_key, second_key = _keys(accumulated, update)
    positions = positions.contiguous()
    magnitudes = torch.empty(positions.numel(), dtype=torch.float32, device=accumulated.device)
    with torch.cuda.device_of(accumulated):
        _sample_kernel[_grid(positions.numel())](
            gradient, u, accumulated, positions, magnitudes, positions.numel(), momentum,
            first_key, second_key, nesterov=nesterov, **OPTIONS,
        )  # fmt: skip
    return magnitudes


def _search(v: Tensor, update: Update | None, threshold: float, limit: int) -> Found:
    """Apply the update to ``v[n]``, if any, and find the elements at or above the threshold."""
    gradient, u, momentum, nesterov = _arguments(v, update)
    first_key, second_key = _keys(v, update)
    n, device = v.numel(), v.device
    grid, lowest, room = _grid(n), _lowest_wanted(threshold), min(limit, n)
    found = torch.zeros(1, dtype=torch.int64, device=device)
    counts = torch.empty(grid[0], dtype=torch.int32, device=device)
    indices = torch.empty(room, dtype=torch.int64, device=device)
    values = torch.empty(room, dtype=torch.float32, device=device)
    with torch.cuda.device_of(v):
        _search_kernel[grid](
            gradient, u, v, n, momentum, first_key, second_key, lowest, room, found, counts,
            indices, values, nesterov=nesterov, **OPTIONS,
        )  # fmt: skip
        total = int(found)  # the only host synchronization
        if total <= room:
            indices, order = indices[:total].sort()
            return Found(total, indices, values[order])
        if room:
            starts = counts.cumsum(0, dtype=torch.int64).sub_(counts)
            _first_kernel[grid](v, n, lowest, room, starts, indices, values, **OPTIONS)
    return Found(total, indices, values)


def _grid(count: int) -> tuple[int]:
    """Return the launch grid of ``count`` elements: one program per block."""
    return (triton.cdiv(count, BLOCK),)


def _lowest_wanted(threshold: float) -> int:
    """Return the bit pattern of the smallest magnitude to be found, which is never that of 0.

    Non-negative floats order as their bit patterns do, with NaN above infinity. So kernels compare
    integers, and find every NaN.
    """
    bits = torch.tensor(max(threshold, 0.0), dtype=torch.float32).view(torch.int32)
    return max(int(bits), 1)


def _arguments(
    v: Tensor, update: Update | None
) -> tuple[Tensor | None, Tensor | None, float, bool]:
    """Return gradient, momentum buffer, momentum and rule, after checks of their sizes.

    A kernel would read and write beyond the end of a tensor that is too short.
    """
    _check('values', v, v, torch.float32, torch.bfloat16)
    if update is None:
        return None, None, 0.0, False
    gradient, u = update.gradient.contiguous(), update.momentum_buffer
    _check('gradient', gradient, v, *FUSED_TYPES)
    if u is None:
        return gradient, None, 0.0, False
    _check('momentum_buffer', u, v, v.dtype)
    return gradient, u, float(update.momentum), update.nesterov


def _keys(v: Tensor, update: Update | None) -> tuple[int, int]:
    """Return the keys of an update of bfloat16 as signed numbers of 32 bits, for which Triton
    compiles one variant; 0 where nothing is rounded."""
    rounding = None if update is None else update.rounding
    if update is not None and (rounding is None) == (v.dtype == torch.bfloat16):
        raise ValueError('dgc: a memory in bfloat16 needs two keys, and one in float32 takes none')
    first, second = (key - (key >> 31 << 32) for key in rounding or (0, 0))
    return first, second


def _check(name: str, tensor: Tensor, like: Tensor, *dtypes: torch.dtype) -> None:
    flat = tensor.dim() == 1 and tensor.is_contiguous()
    alike = tensor.shape == like.shape and tensor.device == like.device
    if not (flat and alike and tensor.dtype in dtypes):
        names = ' or '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)
        raise ValueError(
            f'dgc: {name} must be flat, contiguous, {names}, with {like.numel()} elements on '
            f'{like.device}, got {tensor.dtype} {list(tensor.shape)} on {tensor.device}'
        )


# In the kernels gradient[n], u[n] and v[n] are pointers; the first two are None where the rule does
# not use them. Positions are int64, for tensors of more than 2³¹ elements. Scalars that change from
# call to call are not specialized, since Triton would compile a variant for some of their values.


@triton.jit(do_not_specialize=['momentum', 'first_key', 'second_key', 'lowest', 'limit'])
def _search_kernel(
    gradient, u, v, n, momentum, first_key, second_key, lowest, limit, found, counts, indices,
    values, nesterov: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Update and collect one block; found[1] is the total, counts[programs] are its parts."""
    program = tl.program_id(0)
    first = program.to(tl.int64) * block
    if first + block <= n:  # without a mask, loads are vectorized whatever n is
        accumulated = _take_in(
            gradient, u, v, first, None, momentum, first_key, second_key, nesterov, block
        )
    else:
        inside = tl.arange(0, block) < n - first
        accumulated = _take_in(
            gradient, u, v, first, inside, momentum, first_key, second_key, nesterov, block
        )
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
    """Collect one block into the list from starts[programs] on, up to the limit."""
    program = tl.program_id(0)
    start = tl.load(starts + program)
    if start < limit:
        first = program.to(tl.int64) * block
        lanes = tl.arange(0, block)
        accumulated = _widened(tl.load(v + first + lanes, mask=lanes < n - first, other=0.0))
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


@triton.jit(do_not_specialize=['count', 'momentum', 'first_key', 'second_key'])
def _sample_kernel(
    gradient, u, v, positions, magnitudes, count, momentum, first_key, second_key,
    nesterov: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store magnitudes[count] of v at positions[count], as they will be after the update."""
    lanes = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = lanes < count
    at = tl.load(positions + lanes, mask=inside, other=0)
    g = _widened(tl.load(gradient + at, mask=inside, other=0.0))
    old = tl.load(v + at, mask=inside, other=0.0)
    accumulated = _widened(old)
    if u is None:
        accumulated = accumulated + g
    else:
        velocity = _widened(tl.load(u + at, mask=inside, other=0.0))
        velocity, accumulated = _updated(g, velocity, accumulated, momentum, nesterov)
    if old.dtype == tl.bfloat16:
        accumulated = _rounded(accumulated, _draw(at, first_key, second_key) >> 16)
    tl.store(magnitudes + lanes, tl.abs(accumulated), mask=inside)


@triton.jit
def _take_in(
    gradient, u, v, first, inside, momentum, first_key, second_key,
    nesterov: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Update one block of u and v in place and return it in float32; 0 outside the tensor."""
    lanes = tl.arange(0, block)
    old = _load(v + first + lanes, inside)
    accumulated = _widened(old)
    if gradient is not None:
        g = _widened(_load(gradient + first + lanes, inside))
        draw = _draw(first + lanes, first_key, second_key)
        if u is None:
            accumulated = accumulated + g
        else:
            velocity = _widened(_load(u + first + lanes, inside))
            velocity, accumulated = _updated(g, velocity, accumulated, momentum, nesterov)
            if old.dtype == tl.bfloat16:
                tl.store(u + first + lanes, _upper(_rounded(velocity, draw & 0xFFFF)), mask=inside)
            else:
                tl.store(u + first + lanes, velocity, mask=inside)
        if old.dtype == tl.bfloat16:
            accumulated = _rounded(accumulated, draw >> 16)
            tl.store(v + first + lanes, _upper(accumulated), mask=inside)
        else:
            tl.store(v + first + lanes, accumulated, mask=inside)
    return accumulated


@triton.jit
def _draw(positions, first_key, second_key):
    """Return ``dgc.ops.rounding.draws`` as one number: that of the momentum in its lower half."""
    low, high = positions.to(tl.uint32), (positions >> 32).to(tl.uint32)
    return _mix(low ^ first_key.to(tl.uint32)) ^ second_key.to(tl.uint32) ^ _mix(high)


@triton.jit
def _mix(x):
    """Return ``dgc.ops.uniform.mix`` of 32-bit numbers."""
    x = x ^ (x >> 16)
    x = x * tl.full((), 0x21F0AAAD, tl.uint32)
    x = x ^ (x >> 15)
    x = x * tl.full((), 0x735A2D97, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def _rounded(values, draw):
    """Return ``dgc.ops.rounding.rounded`` of float32, as float32."""
    words = values.to(tl.int32, bitcast=True)
    is_finite = (words & 0x7FFFFFFF) < 0x7F800000
    words = words + tl.where(is_finite, draw.to(tl.int32), 0)
    return (words >> 16 << 16).to(tl.float32, bitcast=True)


@triton.jit
def _upper(values):
    """Return float32 that a bfloat16 holds, as bfloat16; GPUs before sm_80 cannot convert it."""
    upper = (values.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    return upper.to(tl.bfloat16, bitcast=True)


@triton.jit
def _load(pointers, inside):
    """Load a block, 0 where the mask is false. Without a mask there must be no ``other`` either."""
    if inside is None:
        block = tl.load(pointers)
    else:
        block = tl.load(pointers, mask=inside, other=0.0)
    return block


@triton.jit
def _widened(gradient):
    """Convert to float32. A bfloat16 is its upper half; GPUs before sm_80 cannot convert it."""
    if gradient.dtype == tl.bfloat16:
        bits = gradient.to(tl.int16, bitcast=True).to(tl.int32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    else:
        wide = gradient.to(tl.float32)
    return wide


@triton.jit
def _updated(g, u, v, momentum, nesterov: tl.constexpr):
    """Return the new u and v by the rules of Update, in the reference's order of operations."""
    if nesterov:
        u = (u + g) * momentum
        v = v + u + g
    else:
        u = u * momentum + g
        v = v + u
    return u, v


@triton.jit
def _is_wanted(values, lowest):
    """Return 1 where a magnitude is at or above the threshold, else 0."""
    magnitudes = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return (magnitudes >= lowest).to(tl.int32)


@triton.jit
def _write(
    accumulated, wanted, first, start, limit, indices, values,
    block: tl.constexpr,
):  # fmt: skip
    """Write the wanted elements of a block, in order, from place ``start`` of the list on."""
    places = start + tl.cumsum(wanted) - wanted
    here = (wanted != 0) & (places < limit)
    tl.store(indices + places, first + tl.arange(0, block), mask=here)
    tl.store(values + places, accumulated, mask=here)
