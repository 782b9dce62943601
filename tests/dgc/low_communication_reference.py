"""Plain implementations of exchanges of dense messages, written from the papers.

One process, loops over ranks. ``corrected`` holds, by rank, float32 ``[n]``. A quantizer maps a
float32 tensor to what its decoded message holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, log2, prod
from typing import NamedTuple

import torch
from torch import Tensor

Quantizer = Callable[[Tensor], Tensor]


class Outcome(NamedTuple):
    """mean: ``[n]``, the result on all ranks. residuals: by rank ``[n]``."""

    mean: Tensor
    residuals: list[Tensor]


def as_is(values: Tensor) -> Tensor:
    """No quantization."""
    return values.clone()


def sign(values: Tensor) -> Tensor:
    """One scale for fewer than 4096 values (Karimireddy et al., arXiv 1901.09847, section 5)."""
    if not len(values):
        return values.clone()
    scale = values.double().abs().mean().float()
    return torch.where(values >= 0, scale, -scale)


def int8(values: Tensor) -> Tensor:
    """The nearest of 255 steps, for fewer than 256 values."""
    if not len(values) or not values.any():
        return values.clone()
    step = values.abs().max() / 127
    return (values / step).round() * step


QUANTIZERS: dict[str, Quantizer] = {'fp32': as_is, 'sign': sign, 'int8': int8}


def all_gather(corrected: Sequence[Tensor], quantize: Quantizer) -> Outcome:
    """The mean of quantized messages."""
    total, residuals = torch.zeros_like(corrected[0]), []
    for flat in corrected:
        total += quantize(flat)
        residuals.append(flat - quantize(flat))
    return Outcome(total / len(corrected), residuals)


def mean_of_contributors(messages: Sequence[Mapping[int, float]], numel: int) -> Tensor:
    """Each element's mean over the messages that have it (Peng et al., arXiv 2411.19870)."""
    mean = torch.zeros(numel)
    for index in range(numel):
        values = [message[index] for message in messages if index in message]
        if values:
            mean[index] = sum(values) / len(values)
    return mean


def majority_vote(corrected: Sequence[Tensor], quantize: Quantizer) -> Tensor:
    """The sign of the majority, 0 in a tie (Bernstein et al., arXiv 1810.05291, Algorithm 1)."""
    messages = [quantize(flat) for flat in corrected]
    votes = sum((message > 0).int() - (message < 0).int() for message in messages)
    return ((votes > 0).int() - (votes < 0).int()).to(corrected[0].dtype)


def random_k(corrected: Sequence[Tensor], positions: Sequence[int], scale: float = 1.0) -> Outcome:
    """The mean at ``positions``, times ``scale`` (Stich et al., arXiv 1809.07599; Wangni et al.,
    arXiv 1710.09854)."""
    mean, residuals = torch.zeros_like(corrected[0]), [flat.clone() for flat in corrected]
    for index in positions:
        mean[index] = scale * sum(flat[index] for flat in corrected) / len(corrected)
        for residual in residuals:
            residual[index] = 0
    return Outcome(mean, residuals)


def compressed_all_reduce(
    corrected: Sequence[Tensor], owner_errors: list[Tensor], quantize: Quantizer
) -> Outcome:
    """1-bit Adam's two-sided compression (Tang et al., arXiv 2102.02888, section 4.2).

    owner_errors: by rank, of the slice that it averages; replaced.
    """
    size, numel = len(corrected), len(corrected[0])
    mean, residuals = torch.zeros_like(corrected[0]), [flat.clone() for flat in corrected]
    for owner in range(size):
        part = slice(owner * numel // size, (owner + 1) * numel // size)
        total = torch.zeros_like(mean[part])
        for flat, residual in zip(corrected, residuals, strict=True):
            message = quantize(flat[part])
            total += message
            residual[part] -= message
        average = total / size + owner_errors[owner]
        mean[part] = quantize(average)
        owner_errors[owner] = average - mean[part]
    return Outcome(mean, residuals)


def power_sgd(
    corrected: Sequence[Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    factors: dict[str, Tensor],
    rank: int,
) -> Outcome:
    """PowerSGD (Vogels et al., arXiv 1905.13727, Algorithm 1), in float64.

    shapes: of the parameters, in the order in which they lie in ``[n]``.
    factors: ``Q [m, r]`` of each low-rank parameter, replaced by that of the next step.
    """
    size, begin = len(corrected), 0
    mean = torch.zeros_like(corrected[0], dtype=torch.float64)
    residuals = [torch.zeros_like(mean) for _ in corrected]
    for name, shape in shapes.items():
        part = slice(begin, begin + prod(shape))
        begin += prod(shape)
        if not is_low_rank(shape, rank):
            for flat in corrected:
                mean[part] += flat[part].double() / size
            continue
        matrices = [flat[part].double().view(shape[0], -1) for flat in corrected]
        p = gram_schmidt(sum(matrix @ factors[name].double() for matrix in matrices) / size)
        own = [matrix.T @ p for matrix in matrices]
        factors[name] = sum(own) / size
        mean[part] = (p @ factors[name].T).reshape(-1)
        for residual, matrix, q in zip(residuals, matrices, own, strict=True):
            residual[part] = (matrix - p @ q.T).reshape(-1)
    return Outcome(mean, residuals)


def is_low_rank(shape: tuple[int, ...], rank: int) -> bool:
    """Whether both factors together are smaller than the matrix."""
    if len(shape) < 2:
        return False
    rows, columns = shape[0], prod(shape[1:])
    return min(rank, rows, columns) * (rows + columns) < rows * columns


def gram_schmidt(matrix: Tensor) -> Tensor:
    """Orthonormal columns of the same span, for linearly independent columns."""
    columns: list[Tensor] = []
    for column in matrix.T:
        for other in columns:
            column = column - (column @ other) * other
        columns.append(column / column.norm())
    return torch.stack(columns, 1)


def ternary(values: Tensor, draws: Tensor) -> Tensor:
    """TernGrad's rounding (Wen et al., arXiv 1705.07878, equation 1), a scale per 512 values.

    draws: uniform numbers, one per value. A value rises to the next of the levels -s, 0 and s where
    its draw is below its distance from the lower one, as a fraction of s.
    """
    rounded = []
    for begin in range(0, len(values), 512):
        block = values[begin : begin + 512].tolist()
        s = max(abs(x) for x in block)
        for x, u in zip(block, draws[begin : begin + 512].tolist(), strict=True):
            low = 0.0 if x >= 0 else -s
            rounded.append(low + s if s and u < (x - low) / s else low)
    return torch.tensor(rounded)


def natural(values: Tensor, draws: Tensor) -> Tensor:
    """Natural compression (Horváth et al., arXiv 1905.10988, Definition 1)."""
    rounded = []
    for x, u in zip(values.tolist(), draws.tolist(), strict=True):
        low = 2.0 ** floor(log2(abs(x))) if x else 0.0
        high = low and 2 * low if u < (abs(x) - low) / (low or 1) else low
        rounded.append(high if x >= 0 else -high)
    return torch.tensor(rounded)


def row_means(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """1-bit SGD's quantizer (Seide et al., 2014): in each row, the mean of the elements of a sign.

    values: of one parameter, in any shape. shape: of the parameter.
    """
    matrix = values.double().reshape(shape[0] if len(shape) > 1 else 1, -1)
    rounded = []
    for row in matrix.tolist():
        above, below = [x for x in row if x >= 0], [x for x in row if x < 0]
        high, low = sum(above) / max(len(above), 1), sum(below) / max(len(below), 1)
        rounded += [high if x >= 0 else low for x in row]
    return torch.tensor(rounded)
