"""Elastic workers as threads of the test, over torchft's own lighthouse and process groups.

A worker that dies leaves its group as the kernel does for a killed process: its connections are
closed, and its heartbeats end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from dgc_helpers import Named, loss, parameters
from elastic_lighthouse import Lighthouse
from torch import Tensor

import dgc
from dgc.elastic import ElasticOptimizer, ElasticSettings, TorchftEngine
from dgc.memory import AveragedMomentum
from dgc.optim import OneBitAdam

LIMIT = 60.0  # seconds for all workers
RATE = 0.1


class Died(Exception):
    """A worker dies here."""


class Worker(threading.Thread):
    """One worker.

    Args:
        name: By which its gradients are drawn.
        lighthouse: Where it asks.
        composition: Makes the composition.
        work: What it does; called with this worker.
        settings: Of ElasticSettings.
    """

    def __init__(
        self,
        name: str,
        lighthouse: Lighthouse,
        composition: Callable[[], dgc.Composition],
        work: Callable[[Worker], None],
        **settings: Any,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._composition, self._work = composition, work
        self.error: BaseException | None = None
        settings = {'join_seconds': 0.0, 'drop_seconds': 10.0, **settings}
        address = f'127.0.0.1:{lighthouse.port}'
        self.settings = ElasticSettings(address, name, **settings)
        self.number = sum(map(ord, name))
        self.named: Named = parameters()
        self.start()

    def run(self) -> None:
        try:
            self.engine = TorchftEngine(self.settings)
            self.optimizer = wrap(self.named, self._composition(), self.engine)
            self._work(self)
        except Died:
            self.die()
        except BaseException as error:
            self.error = error
            if hasattr(self, 'engine'):
                self.die()
        else:
            self.engine.close()

    def die(self) -> None:
        """Leave as a killed process does."""
        self.engine.lighthouse.close()
        self.engine._watch.stop()
        self.engine.submit(self.engine._break).result()

    def gradients(self, step: int) -> None:
        """Compute this worker's gradients of a step."""
        self.optimizer.zero_grad()
        loss(self.named, self.number, step).backward()

    def step(self) -> bool:
        """Begin and make a step; return whether it was applied."""
        self.optimizer.begin()
        self.gradients(self.engine.committed)
        self.optimizer.step()
        return self.optimizer.committed

    def until(self, condition: Callable[[], bool]) -> None:
        """Make steps until ``condition()`` holds after one that was applied."""
        deadline = time.monotonic() + LIMIT
        while not (self.step() and condition()):
            assert time.monotonic() < deadline, 'it does not come to an end'
            time.sleep(0.01)

    def values(self) -> list[Tensor]:
        """The parameters."""
        return [parameter.detach().clone() for _, parameter in self.named]


def wrap(named: Named, composition: dgc.Composition, engine: TorchftEngine) -> ElasticOptimizer:
    """An ElasticOptimizer over the optimizer that fits the composition's memory."""
    plain = [parameter for _, parameter in named]
    inner: Any
    if isinstance(composition.memory, AveragedMomentum):
        inner = OneBitAdam(plain, RATE, (0.9, 0.99), 1e-4, 0.0)
    elif composition.memory.holds_momentum:
        inner = dgc.DGCSGD(plain, RATE)
    else:
        inner = torch.optim.SGD(plain, RATE)
    return ElasticOptimizer(inner, named, composition, engine)


def finish(*workers: Worker) -> None:
    """Wait for workers, and raise the first error."""
    deadline = time.monotonic() + LIMIT
    while any(worker.is_alive() for worker in workers):
        errors = [worker.error for worker in workers if worker.error is not None]
        if errors:
            raise errors[0]
        hang = [worker.name for worker in workers if worker.is_alive()]
        assert time.monotonic() < deadline, f'{", ".join(hang)}: no end'
        time.sleep(0.01)
    for worker in workers:
        if worker.error is not None:
            raise worker.error
