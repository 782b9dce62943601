"""Measures when each gradient is complete during a step, so that it may be sent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Profile(NamedTuple):
    """Measured times of a step, in seconds from its start: medians over the measured batches.

    Attributes:
        forward: When the forward pass has ended and the backward pass begins.
        backward: When the backward pass has ended.
        arrivals: Parameter name → when its gradient is complete, ascending. Parameters that take no
            part in the step are absent.
    """

    forward: float
    backward: float
    arrivals: dict[str, float]


def profile(
    model: nn.Module, closure: Callable[[], Tensor], batches: int, warmup: int = 1
) -> Profile:
    """Measure forward and backward passes of a model; the last batch's gradients stay in ``.grad``.

    Args:
        model: Whose gradients are observed.
        closure: Computes the scalar loss of the next batch. Backward passes inside it, which
            accumulate gradients, count as part of the forward pass; a parameter's arrival is then
            its last.
        batches: The number of measured steps.
        warmup: The number of steps before them that are not measured.

    Raises:
        ValueError: For ``batches`` below 1.
    """
    if batches < 1:
        raise ValueError(f'batches must be at least 1, got {batches}')
    runs: list[Profile] = []
    arrived: dict[str, float] = {}

    def note(name: str, parameter: Tensor) -> None:
        """Record when a gradient was accumulated. Called by autograd."""
        arrived[name] = moment(parameter.device)

    handles = [
        parameter.register_post_accumulate_grad_hook(partial(note, name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        for _ in range(warmup + batches):
            model.zero_grad()
            arrived.clear()
            runs.append(one(closure, arrived))
    finally:
        for handle in handles:
            handle.remove()
    return medians(runs[warmup:])


def one(closure: Callable[[], Tensor], arrived: dict[str, float]) -> Profile:
    """Measure one forward and backward pass.

    Args:
        closure: Computes the loss.
        arrived: Parameter name → clock reading, which hooks fill during the backward pass.
    """
    start = time.perf_counter()
    loss = closure()
    forward = moment(loss.device)
    loss.backward()
    backward = moment(loss.device)
    since = {name: when - start for name, when in arrived.items()}
    return Profile(forward - start, backward - start, since)


def medians(runs: list[Profile]) -> Profile:
    """Return the median of every time, each over the runs in which it was measured."""
    names = dict.fromkeys(name for run in runs for name in run.arrivals)
    arrivals = {
        name: statistics.median(run.arrivals[name] for run in runs if name in run.arrivals)
        for name in names
    }
    return Profile(
        statistics.median(run.forward for run in runs),
        statistics.median(run.backward for run in runs),
        dict(sorted(arrivals.items(), key=lambda item: item[1])),
    )


def moment(device: torch.device) -> float:
    """Return the clock in seconds, after the work queued on ``device`` has finished."""
    if device.type == 'cuda':  # kernels are asynchronous: without this, only launches are timed
        torch.cuda.synchronize(device)
    return time.perf_counter()
