"""Low-communication training by local steps, written from the papers: loops over ranks, in float64.

One list of arrays per model, in the order of ``dgc_helpers.SHAPES``; shares no code with ``dgc``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Model = list[NDArray[np.float64]]
Gradients = Callable[[Model, int, int], Model]  # of a model, by a rank, in a step


class SGD:
    """``w ← w - lr·g``."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def step(self, model: Model, gradients: Model) -> None:
        for index, gradient in enumerate(gradients):
            model[index] = model[index] - self.lr * gradient


class Adam:
    """Kingma and Ba, Algorithm 1; ``m`` and ``v`` may be replaced between steps."""

    def __init__(self, model: Model, lr: float, betas: tuple[float, float], eps: float) -> None:
        self.m = [np.zeros_like(w) for w in model]
        self.v = [np.zeros_like(w) for w in model]
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0

    def step(self, model: Model, gradients: Model) -> None:
        self.t += 1
        b1, b2 = self.betas
        for index, g in enumerate(gradients):
            self.m[index] = b1 * self.m[index] + (1 - b1) * g
            self.v[index] = b2 * self.v[index] + (1 - b2) * g * g
            m, v = self.m[index] / (1 - b1**self.t), self.v[index] / (1 - b2**self.t)
            model[index] = model[index] - self.lr * m / (np.sqrt(v) + self.eps)


def two_bits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Signs, and the mean magnitude of those below the mean or of the others, as bfloat16; for at
    most 64 values."""
    magnitudes = np.abs(values)
    large = magnitudes >= magnitudes.mean()
    decoded = np.empty_like(magnitudes)
    for group in (large, ~large):
        if group.any():
            decoded[group] = bfloat16(float(magnitudes[group].mean()))
    return np.where(values >= 0, decoded, -decoded)


def bfloat16(value: float) -> float:
    """The nearest number of 8 significant bits."""
    exponent = np.floor(np.log2(value)) - 7
    return float(np.round(value / 2**exponent) * 2**exponent)


def sparse_loco(
    model: Model, gradients: Gradients, ranks: int, rounds: int, every: int, beta: float, lr: float
) -> tuple[Model, list[NDArray[np.float64]]]:
    """Sarfi et al., arXiv 2508.15706, for a model of less than one chunk of 4,096.

    Returns:
        θ_s, and each rank's error memory, flat.
    """
    shapes, numel = [w.shape for w in model], sum(w.size for w in model)
    errors = [np.zeros(numel) for _ in range(ranks)]
    count = 64 * numel // 4096
    for t in range(rounds):
        total = np.zeros(numel)
        for rank in range(ranks):
            ours = [w.copy() for w in model]
            inner = SGD(lr)
            for h in range(every):
                inner.step(ours, gradients(ours, rank, t * every + h))
            delta = np.concatenate([(a - b).ravel() for a, b in zip(model, ours, strict=True)])
            errors[rank] = beta * errors[rank] + delta
            largest = np.sort(np.argsort(-np.abs(errors[rank]))[:count])
            own = two_bits(errors[rank][largest])
            errors[rank][largest] -= own
            total[largest] += own
        begin = 0
        for index, shape in enumerate(shapes):
            size = int(np.prod(shape))
            model[index] = model[index] - (total[begin : begin + size] / ranks).reshape(shape)
            begin += size
    return model, errors


def streaming(
    model: Model,
    gradients: Gradients,
    ranks: int,
    steps: int,
    every: int,
    fragments: Sequence[Sequence[int]],
    delay: int,
    alpha: float,
    inner_lr: float,
) -> tuple[Model, list[Model]]:
    """Douillard et al., arXiv 2501.18512, Algorithm 2; outer Nesterov momentum 0.9, rate 0.7.

    Args:
        fragments: Places in the model, by fragment.

    Returns:
        θ_s, and each rank's θ.
    """
    agreed = [w.copy() for w in model]
    local = [[w.copy() for w in model] for _ in range(ranks)]
    buffers = [np.zeros_like(w) for w in model]
    flying: dict[int, tuple[int, Model]] = {}  # fragment → the step of its arrival, mean Δ
    for t in range(1, steps + 1):
        for rank in range(ranks):
            SGD(inner_lr).step(local[rank], gradients(local[rank], rank, t - 1))
        for number, places in enumerate(fragments):
            offset = number * (every // len(fragments))
            sends = t % every == offset
            deltas = [
                sum(agreed[place] - ours[place] for ours in local) / ranks for place in places
            ]
            if number in flying and flying[number][0] == t:
                outer_step(agreed, buffers, places, flying.pop(number)[1])
                merge(local, agreed, places, alpha)
            if sends and delay == 0:
                outer_step(agreed, buffers, places, deltas)
                merge(local, agreed, places, alpha)
            elif sends:
                flying[number] = (t + delay, deltas)
    return agreed, local


def outer_step(agreed: Model, buffers: Model, places: Sequence[int], deltas: Model) -> None:
    """Nesterov's momentum on a fragment."""
    for place, delta in zip(places, deltas, strict=True):
        buffers[place] = 0.9 * buffers[place] + delta
        agreed[place] = agreed[place] - 0.7 * (delta + 0.9 * buffers[place])


def merge(local: list[Model], agreed: Model, places: Sequence[int], alpha: float) -> None:
    """``θ ← α·θ + (1 - α)·θ_s``."""
    for ours in local:
        for place in places:
            ours[place] = alpha * ours[place] + (1 - alpha) * agreed[place]


def desynced(
    model: Model, gradients: Gradients, ranks: int, steps: int, every: int, m: int, v: int
) -> Model:
    """DES-LOC (Iacob et al., arXiv 2505.22549): parameters, first and second moments are averaged
    every so many steps. Returns rank 0's parameters."""
    local = [[w.copy() for w in model] for _ in range(ranks)]
    inner = [Adam(model, 0.02, (0.9, 0.95), 1e-8) for _ in range(ranks)]
    for t in range(1, steps + 1):
        for rank in range(ranks):
            inner[rank].step(local[rank], gradients(local[rank], rank, t - 1))
        for period, held in (
            (every, local),
            (m, [each.m for each in inner]),
            (v, [each.v for each in inner]),
        ):
            if t % period == 0:
                for place in range(len(model)):
                    mean = sum(each[place] for each in held) / ranks
                    for each in held:
                        each[place] = mean.copy()
    return local[0]


def post_local(
    model: Model, gradients: Gradients, ranks: int, steps: int, every: int, after: int, lr: float
) -> Model:
    """Lin et al., arXiv 1808.07217: averaged at each of the first steps, then every so many."""
    local = [[w.copy() for w in model] for _ in range(ranks)]
    for t in range(1, steps + 1):
        for rank in range(ranks):
            SGD(lr).step(local[rank], gradients(local[rank], rank, t - 1))
        if t <= after or (t - after) % every == 0:
            mean = [sum(each) / ranks for each in zip(*local, strict=True)]
            local = [[w.copy() for w in mean] for _ in range(ranks)]
    return local[0]


def zero_one_adam(
    model: Model,
    gradients: Gradients,
    ranks: int,
    rates: Sequence[float],
    syncs: Collection[int],
    variances: Collection[int],
    mean_of: Callable[[int, Model], NDArray[np.float64]],
    betas: tuple[float, float],
    eps: float,
    decay: float,
    floor: float,
) -> tuple[Model, list[Model]]:
    """0/1 Adam (Lu et al., arXiv 2202.06009, Algorithm 1) with v, from 0, corrected as Adam's, and
    changed before the movement of its step; with decoupled weight decay at synchronizations.

    Args:
        rates: By step.
        syncs: T_u, steps after which u is averaged.
        variances: T_v, steps whose mean gradient changes v; among those of ``syncs``.
        mean_of: Of the place of a tensor in the model and the ranks' u, what all ranks receive.
        floor: By which v is at least this part of its mean over the tensor.

    Returns:
        The parameters at the last synchronization, and each rank's.
    """
    agreed = [w.copy() for w in model]
    local = [[w.copy() for w in model] for _ in range(ranks)]
    m, u = ([[np.zeros_like(w) for w in model] for _ in range(ranks)] for _ in range(2))
    v, changes, total = [np.zeros_like(w) for w in model], 0, 0.0
    b1, b2 = betas
    for t, rate in enumerate(rates):
        of_ranks = [gradients(local[rank], rank, t) for rank in range(ranks)]
        total += rate
        if t in variances:
            changes += 1
            for place in range(len(model)):
                mean = sum(each[place] for each in of_ranks) / ranks
                v[place] = b2 * v[place] + (1 - b2) * mean**2
        corrected = [each / (1 - b2**changes) for each in v]
        scale = [np.sqrt(np.maximum(each, floor * each.mean())) + eps for each in corrected]
        for rank, place in itertools.product(range(ranks), range(len(model))):
            m[rank][place] = b1 * m[rank][place] + (1 - b1) * of_ranks[rank][place]
            u[rank][place] = u[rank][place] + rate * m[rank][place]
            local[rank][place] = local[rank][place] - rate * m[rank][place] / scale[place]
        if t not in syncs:
            continue
        for place in range(len(model)):
            mean = mean_of(place, [each[place] for each in u])
            agreed[place] = agreed[place] * (1 - decay * total) - mean / scale[place]
            for rank in range(ranks):
                m[rank][place], u[rank][place] = mean / total, np.zeros_like(mean)
                local[rank][place] = agreed[place].copy()
        total = 0.0
    return agreed, local
