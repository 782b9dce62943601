"""The timing of a step of a configuration, for planners that use measured times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from dgc.profile import Profile, profile
from utils.config import Config
from utils.precision import computing

BATCHES = 5


def measure_step(
    configs: Config,
    model: nn.Module,
    criterion: nn.Module,
    loader: Iterable[list[Tensor]],
    device: torch.device,
) -> Profile:
    """Measure when each gradient of a step is complete, on a copy of the model."""
    copy = deepcopy(model).train()
    batches = itertools.cycle(list(itertools.islice(loader, BATCHES)))
    return profile(copy, closure(configs, copy, criterion, batches, device), BATCHES)


def closure(
    configs: Config,
    model: nn.Module,
    criterion: nn.Module,
    batches: Iterator[list[Tensor]],
    device: torch.device,
) -> Callable[[], Tensor]:
    """A function that makes all backward passes of a step but the last, and returns its loss."""
    train = configs.train

    def loss() -> Tensor:
        parts = zip(*(t.to(device).split(train.batch_size) for t in next(batches)), strict=True)

        def next_loss() -> Tensor:
            inputs, targets = next(parts)
            with computing(train.precision, device):
                value: Tensor = criterion(model(inputs), targets)
            return value

        for _ in range(train.num_batches_per_step - 1):
            next_loss().backward()
        return next_loss()

    return loss
