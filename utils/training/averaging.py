"""What the ranks of synchronous training average: gradients, or the movement of local steps.

Each choice wraps the configured optimizer, and says how many ranks' batches one of its steps sees,
by which the learning rate is scaled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from dgc import Composition, DistributedOptimizer, Engine, LocalSteps
from dgc.profile import Profile


@dataclass(frozen=True)
class Surroundings:
    """What an optimizer is wrapped with.

    Attributes:
        model: Whose parameters are trained.
        composition: What gradients, or movements, go through.
        engine: Carries messages.
        batches_per_step: Backward passes before each step.
        steps_per_epoch: Optimizer steps in an epoch.
        profile: Measures a step of the model, for planners that need times.
    """

    model: nn.Module
    composition: Composition
    engine: Engine
    batches_per_step: int
    steps_per_epoch: int
    profile: Callable[[], Profile]


class Averaging(ABC):
    """Wraps the optimizer of one rank."""

    @abstractmethod
    def ranks_per_step(self, world_size: int) -> int:
        """Return the number of ranks whose batches one optimizer step sees."""

    @abstractmethod
    def wrap(
        self, optimizer: Optimizer, surroundings: Surroundings
    ) -> DistributedOptimizer | LocalSteps:
        """Return the optimizer that the training loop uses."""


class EveryStep(Averaging):
    """The mean gradient of all ranks, at every step."""

    def ranks_per_step(self, world_size: int) -> int:
        """All."""
        return world_size

    def wrap(self, optimizer: Optimizer, surroundings: Surroundings) -> DistributedOptimizer:
        """Return a DistributedOptimizer."""
        return DistributedOptimizer(
            optimizer,
            surroundings.model.named_parameters(),
            surroundings.composition,
            surroundings.engine,
            batches_per_step=surroundings.batches_per_step,
            steps_per_epoch=surroundings.steps_per_epoch,
            profile=surroundings.profile,
        )


class OuterSteps(Averaging):
    """Local steps of each rank; every H steps, an outer SGD on their mean movement (DiLoCo).

    Args:
        every: H, inner steps between two outer steps.
        lr: Learning rate of the outer SGD.
        momentum: Of the outer SGD.
        nesterov: Whether that is Nesterov's momentum.
    """

    def __init__(
        self, every: int = 30, lr: float = 0.7, momentum: float = 0.9, nesterov: bool = True
    ) -> None:
        self.every, self.lr, self.momentum, self.nesterov = every, lr, momentum, nesterov

    def ranks_per_step(self, world_size: int) -> int:
        """One: an inner step is local."""
        return 1

    def wrap(self, optimizer: Optimizer, surroundings: Surroundings) -> LocalSteps:
        """Return LocalSteps."""
        parameters = surroundings.model.parameters()
        outer = torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov
        )
        return LocalSteps(
            optimizer,
            outer,
            surroundings.model.named_parameters(),
            surroundings.composition,
            surroundings.engine,
            every=self.every,
            steps_per_epoch=surroundings.steps_per_epoch,
        )
