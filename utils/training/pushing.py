"""What the workers of a parameter server push: updates of every step, or the movement of local
steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from dgc.parameter_server import (
    Asynchronous,
    AsynchronousSteps,
    Budget,
    InverseRounds,
    Link,
    OuterServer,
    Rounds,
    Scaling,
    Server,
    WorkerOptimizer,
)
from utils.config import Config
from utils.training.averaging import Averaging, Surroundings


class Pushing(ABC):
    """Makes a worker's optimizer, and the server that fits it."""

    steps_per_push = 1  # of a worker

    @abstractmethod
    def worker(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        composition: Asynchronous,
        link: Link,
        configuration: str,
        samples: int,
    ) -> WorkerOptimizer:
        """Join the server.

        Args:
            optimizer: The configured one.
            model: Is trained.
            composition: What messages go through.
            link: Carries them.
            configuration: Must equal the server's.
            samples: Of a step.
        """

    @abstractmethod
    def server(
        self,
        optimizer: Callable[[], Optimizer],
        model: nn.Module,
        composition: Asynchronous,
        budget: Budget,
        configuration: str,
        *settings: Any,
    ) -> Server:
        """Return the server.

        Args:
            optimizer: Builds the configured one, over the parameters of ``model``.
            model: Whose parameters the server holds.
            composition: What messages go through.
            budget: Number of workers and updates.
            configuration: Must equal the workers'.
            settings: Further ones, in the order of Server's.
        """


class EveryUpdate(Pushing):
    """Each step's update (DGS, ASGD and their relatives)."""

    def worker(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        composition: Asynchronous,
        link: Link,
        configuration: str,
        samples: int,
    ) -> WorkerOptimizer:
        """Return a WorkerOptimizer."""
        named, buffers = model.named_parameters(), model.buffers()
        return WorkerOptimizer(optimizer, named, buffers, composition, link, configuration)

    def server(
        self,
        optimizer: Callable[[], Optimizer],
        model: nn.Module,
        composition: Asynchronous,
        budget: Budget,
        configuration: str,
        *settings: Any,
    ) -> Server:
        """Return a Server."""
        named, buffers = model.named_parameters(), model.buffers()
        return Server(optimizer(), named, buffers, composition, budget, configuration, *settings)


class AsynchronousOuterSteps(Averaging, Pushing):
    """The movement of local steps; the server takes an outer SGD step on that of a quorum.

    Args:
        every: H, local steps between two pushes of a fragment.
        lr: Learning rate of the outer SGD.
        momentum: Of the outer SGD.
        nesterov: Whether that is Nesterov's momentum.
        fragments: F, parts of the model that are pushed one after another.
        quorum: Workers whose movement an outer step needs; None for more than half of them.
        grace: Seconds after the quorum in which movements of others still count.
        scaling: Factor of a movement by the rounds that it is late.
        pull_every: Local steps between two looks for the end of a round.
    """

    def __init__(
        self,
        every: int = 30,
        lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        fragments: int = 1,
        quorum: int | None = None,
        grace: float = 1.0,
        scaling: Scaling | None = None,
        pull_every: int = 1,
    ) -> None:
        late = scaling or InverseRounds()
        self.rounds = Rounds(every, fragments, quorum, grace, late, pull_every)
        self.lr, self.momentum, self.nesterov = lr, momentum, nesterov
        self.steps_per_push = self.rounds.period

    def ranks_per_step(self, world_size: int) -> NoReturn:
        """Refuse synchronous training."""
        raise ValueError(
            'configs.train.averaging = AsynchronousOuterSteps needs a parameter server, and '
            'configs.train.distribution is Synchronous: use configs/diloco/asynchronous.py, or set '
            'configs.train.averaging to OuterSteps'
        )

    def wrap(self, optimizer: Optimizer, surroundings: Surroundings) -> NoReturn:
        """Refuse synchronous training."""
        self.ranks_per_step(surroundings.engine.size)

    def worker(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        composition: Asynchronous,
        link: Link,
        configuration: str,
        samples: int,
    ) -> WorkerOptimizer:
        """Return AsynchronousSteps."""
        named, buffers = model.named_parameters(), model.buffers()
        return AsynchronousSteps(
            optimizer, named, buffers, composition, link, self.rounds, configuration, samples
        )

    def server(
        self,
        optimizer: Callable[[], Optimizer],
        model: nn.Module,
        composition: Asynchronous,
        budget: Budget,
        configuration: str,
        *settings: Any,
    ) -> Server:
        """Return an OuterServer."""
        outer = torch.optim.SGD(
            model.parameters(), lr=self.lr, momentum=self.momentum, nesterov=self.nesterov
        )
        named, buffers = model.named_parameters(), model.buffers()
        return OuterServer(
            outer, named, buffers, composition, budget, self.rounds, configuration, *settings
        )


def pushing_of(configs: Config) -> Pushing:
    """What ``configs.train.averaging`` has workers push."""
    averaging = configs.train.averaging.build()
    return averaging if isinstance(averaging, Pushing) else EveryUpdate()
