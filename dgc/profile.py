"""When each parameter's gradient is complete in a step, so that it may be sent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Profile(NamedTuple):
    """Seconds after a step's begin; medians over its batches.

    forward: when the backward pass begins; backward: when it has ended.
    arrivals: by parameter, when its gradient is complete, in order of appearance. A parameter that
        takes no part in a step is not there.
    """

    forward: float
    backward: float
    arrivals: dict[str, float]


def profile(
    model: nn.Module, closure: Callable[[], Tensor], batches: int, warmup: int = 1
) -> Profile:
    """Take ``batches`` forward and backward passes, after ``warmup`` that do not count.

    closure: the loss of the next batch, a scalar. Where it makes backward passes of its own, to
        accumulate, they belong to its forward pass, and an arrival is the last of a parameter's.

    The gradients of the last batch stay. Raises ValueError where there is no batch to count.
    """
    if batches < 1:
        raise ValueError(f'batches must be at least 1, got {batches}')
    runs: list[Profile] = []
    arrived: dict[str, float] = {}

    def note(name: str, parameter: Tensor) -> None:
        """That its gradient is complete."""
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
    """One forward and backward pass, during which hooks fill ``arrived`` with moments."""
    start = time.perf_counter()
    loss = closure()
    forward = moment(loss.device)
    loss.backward()
    backward = moment(loss.device)
    since = {name: when - start for name, when in arrived.items()}
    return Profile(forward - start, backward - start, since)


def medians(runs: list[Profile]) -> Profile:
    """Of every number, over those runs that have it."""
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
    """Now, in seconds, with all work done that a GPU was given."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter()
