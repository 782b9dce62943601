"""The rows of bench.accuracy: DDP and its hooks, and algorithms of ``dgc.algorithms``.

torch is imported only in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bench import rows
from tools.harness.algorithms import DENSITY, WITHIN_DGC, algorithm, part

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from bench.accuracy_tasks import Task
    from dgc import Composition, Engine, LocalSteps

EVERY = 30  # inner steps of a row with local steps
FRAGMENTS, DELAY, MERGE = 2, 5, 0.5  # as in configs/streaming/diloco.py


class Trained(NamedTuple):
    """A network with its optimizer.

    Attributes:
        network: To be called.
        optimizer: Its ``zero_grad()`` and ``step()`` are part of a step.
        sent: Returns the bytes that this rank has sent so far; None for others' rows.
        evaluated: Returns what puts the parameters that are evaluated into the network.
    """

    network: nn.Module
    optimizer: Optimizer
    sent: Callable[[], int] | None = None
    evaluated: Callable[[], AbstractContextManager[Any]] = nullcontext


class Epochs(NamedTuple):
    """How a row's training is divided.

    Attributes:
        steps: In an epoch.
        warmup: Epochs in which the density of compressed rows falls.
    """

    steps: int
    warmup: int


@dataclass(frozen=True)
class Hooked:
    """DistributedDataParallel, perhaps with one of its communication hooks.

    Attributes:
        make: Of ``bench.rows``.
        factor: Bytes that its gradients take, of 4 per element; None where they are not known.
    """

    make: rows.Make
    factor: float | None = None

    @property
    def is_steady(self) -> bool:
        """Whether every step sends the same bytes."""
        return self.factor is not None

    def trained(self, task: Task, network: nn.Module, engine: Engine, epochs: Epochs) -> Trained:
        """Return a row's network and optimizer."""
        wrapped = self.make(network, engine, None).network
        return Trained(wrapped, task.optimizer(wrapped.parameters()))


@dataclass(frozen=True)
class Compressed:
    """An algorithm that exchanges in every step.

    Attributes:
        algorithm: Of ``dgc.algorithms``.
        density: Reached after the epochs of its warm-up.
    """

    algorithm: str
    density: float = DENSITY
    is_steady: ClassVar[bool] = False
    beta1: ClassVar[float] = 0.9  # AdamW's

    def memory(self, task: Task) -> str:
        """Return the name of its memory in ``dgc.memory``; '' for the algorithm's own.

        Under AdamW, which has the moments, only what is not sent is fed back.
        """
        return 'Residual' if task.is_adaptive else ''

    def composition(self, task: Task, epochs: Epochs) -> Composition:
        """Return its composition, with the memory that the task's optimizer needs."""
        settings: dict[str, Any] = {
            'warmup_epochs': epochs.warmup,
            'warmup_stage_steps': epochs.steps if epochs.warmup else None,
        }
        name = self.memory(task)
        memory = {'memory': part(f'memory:{name}')} if name else {}
        return algorithm(self.algorithm, self.density, **{**WITHIN_DGC, **memory}, **settings)

    def trained(self, task: Task, network: nn.Module, engine: Engine, epochs: Epochs) -> Trained:
        """Return a row's network and optimizer."""
        import dgc
        from dgc.schedule import lasting_beta2

        made = self.composition(task, epochs)
        betas = self.beta1, lasting_beta2(self.density)
        inner = task.optimizer(network.parameters(), betas)
        if made.memory.holds_momentum:
            inner = dgc.DGCSGD(network.parameters(), task.lr, 0.9, weight_decay=1e-4)
        ours = dgc.DistributedOptimizer(
            inner, network.named_parameters(), made, engine, steps_per_epoch=epochs.steps
        )
        return Trained(network, ours, lambda: ours.reducer.progress.sent)


def with_outer_steps(
    wrap: Callable[..., LocalSteps],
    lr: float,
    momentum: float,
    task: Task,
    network: nn.Module,
    engine: Engine,
    epochs: Epochs,
) -> Trained:
    """Return a network whose ranks average what the task's optimizer has moved them by.

    Args:
        wrap: Makes the optimizer, of two optimizers and the network's parameters.
        lr, momentum: Of the outer SGD; with a momentum it is Nesterov's.
        task, network, engine, epochs: Of the row.
    """
    from torch.optim import SGD

    parameters = list(network.parameters())
    ours = wrap(
        task.optimizer(parameters),
        SGD(parameters, lr, momentum, nesterov=momentum > 0),
        network.named_parameters(),
        engine=engine,
        steps_per_epoch=epochs.steps,
    )
    return Trained(network, ours, lambda: ours.reducer.progress.sent, ours.agreed_parameters)


class Moment(Compressed):
    """The same with AdamW's first moment in the memory, which is sparsified; see ``suits``."""

    beta1 = 0.0

    def memory(self, task: Task) -> str:
        """AdamW's first moment."""
        return 'FirstMoment'


class Movement(Compressed):
    """The same on the steps that each rank's own optimizer takes, in place of gradients."""

    def memory(self, task: Task) -> str:
        """A residual: the moments, or the momentum, are those of the task's optimizer."""
        return 'Residual'

    def trained(self, task: Task, network: nn.Module, engine: Engine, epochs: Epochs) -> Trained:
        """Return a row's network and optimizer."""
        import dgc

        made = self.composition(task, epochs)
        wrap = partial(dgc.LocalSteps, composition=made, every=1)
        return with_outer_steps(wrap, 1.0, 0.0, task, network, engine, epochs)


@dataclass(frozen=True)
class Local:
    """An algorithm that exchanges movements, every EVERY steps of the task's optimizer.

    Attributes:
        algorithm: Of ``dgc.algorithms``.
        lr, momentum: Of the outer optimizer; with a momentum it is Nesterov's.
    """

    algorithm: str
    lr: float
    momentum: float
    is_steady: ClassVar[bool] = False

    @property
    def wrap(self) -> Callable[..., LocalSteps]:
        """Wraps the task's optimizer."""
        import dgc

        return dgc.LocalSteps

    def trained(self, task: Task, network: nn.Module, engine: Engine, epochs: Epochs) -> Trained:
        """Return a row's network and optimizer."""
        import dgc

        made = dgc.ALGORITHMS[self.algorithm].make()
        wrap = partial(self.wrap, composition=made, every=EVERY)
        return with_outer_steps(wrap, self.lr, self.momentum, task, network, engine, epochs)


@dataclass(frozen=True)
class Streaming(Local):
    """The same on FRAGMENTS parts of the network, each of which travels during DELAY steps."""

    @property
    def wrap(self) -> Callable[..., LocalSteps]:
        """Wraps the task's optimizer."""
        import dgc

        return partial(dgc.StreamingSteps, fragments=FRAGMENTS, delay=DELAY, merge=MERGE)


def suits(name: str, task: Task) -> bool:
    """Return whether a row is another than all others: with SGD, 'moment 1 %' is 'dgc 1 %'."""
    return task.is_adaptive or not isinstance(ROWS[name], Moment)


ROWS: dict[str, Hooked | Compressed | Local] = {
    'ddp': Hooked(rows.ddp, 1.0),
    'ddp fp16': Hooked(rows.ddp_fp16, 0.5),
    'powersgd': Hooked(rows.powersgd),
    'dgc': Compressed('dgc'),
    'dgc 1 %': Compressed('dgc', 0.01),
    'moment 1 %': Moment('dgc', 0.01),
    'movement 1 %': Movement('dgc', 0.01),
    'movement 5 %': Movement('dgc', 0.05),
    'gtopk': Compressed('gtopk'),
    'gtopk 1 %': Compressed('gtopk', 0.01),
    'spardl': Compressed('spardl'),
    'spardl 1 %': Compressed('spardl', 0.01),
    'oktopk 1 %': Compressed('oktopk', 0.01),
    'diloco': Local('diloco', 0.7, 0.9),
    'streaming-diloco': Streaming('streaming-diloco', 0.7, 0.9),
    'sparse-loco': Local('sparse-loco', 1.0, 0.0),
}
