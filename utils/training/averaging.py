"""What the ranks of synchronous training average: gradients, or the movement of local steps.

Each choice wraps the configured optimizer, and says how many ranks' batches one of its steps sees,
by which the learning rate is scaled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from dgc import (
    Composition,
    DistributedOptimizer,
    Engine,
    LocalSteps,
    StreamingSteps,
    SyncSchedule,
    ZeroOneSteps,
)
from dgc.checks import check_part
from dgc.optim import ZeroOneAdam
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
        after: So many first steps each end with an outer step (post-local SGD).
        moments: Entry of the optimizer's state → inner steps between two averages of it (DES-LOC).
    """

    def __init__(
        self,
        every: int = 30,
        lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        after: int = 0,
        moments: Mapping[str, int] | None = None,
    ) -> None:
        self.every, self.lr, self.momentum, self.nesterov = every, lr, momentum, nesterov
        self.after, self.moments = after, moments

    def ranks_per_step(self, world_size: int) -> int:
        """One: an inner step is local."""
        return 1

    def wrap(self, optimizer: Optimizer, surroundings: Surroundings) -> LocalSteps:
        """Return LocalSteps."""
        return LocalSteps(
            optimizer,
            self._outer(surroundings),
            surroundings.model.named_parameters(),
            surroundings.composition,
            surroundings.engine,
            every=self.every,
            steps_per_epoch=surroundings.steps_per_epoch,
            after=self.after,
            moments=self.moments,
        )

    def _outer(self, surroundings: Surroundings) -> torch.optim.SGD:
        """Return the outer optimizer."""
        return torch.optim.SGD(
            surroundings.model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
        )


class StreamingOuterSteps(OuterSteps):
    """Local steps with an outer SGD on one fragment of the model at a time (Streaming DiLoCo).

    Args:
        every, lr, momentum, nesterov: As of OuterSteps.
        fragments: F, parts of the model that travel at different times.
        delay: τ, inner steps while a fragment travels.
        merge: α, how much of a worker's own parameters remains when a fragment is merged.
    """

    def __init__(
        self,
        every: int = 30,
        lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        fragments: int = 4,
        delay: int = 5,
        merge: float = 0.5,
    ) -> None:
        super().__init__(every, lr, momentum, nesterov)
        self.fragments, self.delay, self.merge = fragments, delay, merge

    def wrap(self, optimizer: Optimizer, surroundings: Surroundings) -> LocalSteps:
        """Return StreamingSteps."""
        return StreamingSteps(
            optimizer,
            self._outer(surroundings),
            surroundings.model.named_parameters(),
            surroundings.composition,
            surroundings.engine,
            every=self.every,
            fragments=self.fragments,
            delay=self.delay,
            merge=self.merge,
            steps_per_epoch=surroundings.steps_per_epoch,
        )


class MomentumSums(Averaging):
    """The summed momentum of local steps of ZeroOneAdam, and some gradients (0/1 Adam).

    Args:
        freeze_step, variance_doubling, interval_doubling, every: As of ``dgc.SyncSchedule``.
    """

    def __init__(
        self,
        freeze_step: int = 100,
        variance_doubling: int = 16,
        interval_doubling: int = 32_768,
        every: int = 16,
    ) -> None:
        self.schedule = SyncSchedule(freeze_step, variance_doubling, interval_doubling, every)

    def ranks_per_step(self, world_size: int) -> int:
        """All: at first each step ends with an average."""
        return world_size

    def wrap(self, optimizer: Optimizer, surroundings: Surroundings) -> LocalSteps:
        """Return ZeroOneSteps."""
        check_part('configs.train.optimizer', optimizer, ZeroOneAdam, 'Config(ZeroOneAdam)')
        assert isinstance(optimizer, ZeroOneAdam)
        return ZeroOneSteps(
            optimizer,
            surroundings.model.named_parameters(),
            surroundings.composition,
            surroundings.engine,
            self.schedule,
            steps_per_epoch=surroundings.steps_per_epoch,
        )
