"""One worker of bench.accuracy, started by torchrun: `-m bench.accuracy_worker SPEC`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.accuracy_rows import ROWS, Epochs, Hooked
from bench.accuracy_tasks import TASKS, test_loader

if TYPE_CHECKING:
    from torch import Tensor

    from dgc import Engine

SEED = 42
LIFTED = 'lifted'  # name of the gate at which the limit of the links is taken away


@dataclass(frozen=True)
class Recipe:
    """What to train.

    Attributes:
        row: Of ROWS.
        task: Of TASKS.
        root: Folder of the data.
        samples: Training samples of an epoch.
        batch: Samples per worker and step.
        lr: The highest learning rate.
        epochs: Number of epochs.
        warmup: Epochs in which the density of compressed rows falls.
        every: Steps between two evaluations.
        test: The first so many test samples are evaluated.
        target: A quality at which training ends; None: at the end of the epochs.
        limited: Steps that are trained at the rate of the links. Later ones are trained without a
            limit, and each counts as long as those took in the mean; None: all are.
    """

    row: str
    task: str
    root: str
    samples: int
    batch: int
    lr: float
    epochs: int
    warmup: int
    every: int
    test: int
    target: float | None = None
    limited: int | None = None


class Training:
    """The training of a row on one worker.

    Args:
        recipe: What to train.
        engine: Of the worker.
        lift: Takes the limit of the links away; a collective.

    Attributes:
        steps: Made so far.
        seconds: That they took, or count as.
        per_step: Seconds that a further step counts as; None: those that it takes.
    """

    def __init__(
        self, recipe: Recipe, engine: Engine, lift: Callable[[], None] = lambda: None
    ) -> None:
        import torch

        from utils.data import train_loader

        self.engine, self.recipe, self.lift = engine, recipe, lift
        self.task = replace(TASKS[recipe.task], lr=recipe.lr)
        self.row = ROWS[recipe.row]
        data = self.task.data(Path(recipe.root), recipe.samples)
        rank, size = engine.rank, engine.size
        self.loader, self.share = train_loader(data['train'], recipe.batch, rank, size, SEED)
        self.test = test_loader(data['test'], recipe.test, rank, size)
        torch.manual_seed(SEED)
        network = self.task.network().train()
        epochs = Epochs(len(self.loader), recipe.warmup)
        self.trained = self.row.trained(self.task, network, engine, epochs)
        torch.manual_seed(SEED + rank)  # augmentation
        self.steps, self.seconds = 0, 0.0
        self.per_step: float | None = None

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of all epochs."""
        for epoch in range(self.recipe.epochs):
            self.share.epoch = epoch
            yield from self.loader

    def curve(self) -> Iterator[dict[str, float]]:
        """Train; yield steps, seconds of training and quality after each ``every`` steps."""
        batches = self.batches()
        total = len(self.loader) * self.recipe.epochs
        while self.steps < total:
            self.advance(batches, min(self.recipe.every, total - self.steps))
            quality = self.quality()
            yield {'steps': self.steps, 'seconds': self.seconds, 'quality': quality}
            if self.recipe.target is not None and self.task.reaches(quality, self.recipe.target):
                return

    def advance(self, batches: Iterator[tuple[Tensor, Tensor]], count: int) -> None:
        """Make some steps; take the limit away after the last one that is trained with it."""
        limited = count if self.recipe.limited is None else self.recipe.limited - self.steps
        if timed := min(count, max(limited, 0)):
            self.seconds += self.train(batches, timed)
        if rest := count - timed:
            if self.per_step is None:
                self.per_step = self.seconds / self.steps
                self.lift()
            self.train(batches, rest)
            self.seconds += rest * self.per_step

    def train(self, batches: Iterator[tuple[Tensor, Tensor]], count: int) -> float:
        """Make some steps; return their seconds."""
        network, optimizer = self.trained.network.train(), self.trained.optimizer
        self.engine.barrier()
        start = time.perf_counter()
        for _ in range(count):
            inputs, targets = next(batches)
            for group in optimizer.param_groups:
                rate = self.task.rate_at(self.steps, len(self.loader), self.recipe.epochs)
                group['lr'] = rate
            optimizer.zero_grad()
            self.task.loss(network(inputs), targets).backward()
            optimizer.step()
            self.steps += 1
        self.engine.barrier()
        return time.perf_counter() - start

    def quality(self) -> float:
        """Return that of the test samples, with BatchNorm's statistics averaged over workers."""
        import torch

        import dgc

        network = self.trained.network.eval()
        dgc.average_tensors(self.engine, network.buffers())
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.inference_mode(), self.trained.evaluated():
            for inputs, targets in self.test:
                sums += torch.tensor(self.task.sums(network(inputs), targets), dtype=torch.float64)
        first, second = self.engine.all_reduce(sums).tolist()
        return self.task.quality((first, second))

    def megabytes(self) -> float | None:
        """Return what this worker has sent so far, in 10⁶ bytes; for DDP, as a ring does."""
        if self.trained.sent is not None:
            return self.trained.sent() / 1e6
        if not isinstance(self.row, Hooked) or self.row.factor is None:
            return None
        parameters = sum(each.numel() for each in self.trained.network.parameters())
        size = self.engine.size
        return 2 * (size - 1) / size * 4 * self.row.factor * parameters * self.steps / 1e6


def main(path: str) -> None:
    """Train what the specification at ``path`` asks for; rank 0 answers after each evaluation."""
    import torch

    import dgc
    from tools.harness.gate import wait_at
    from tools.harness.spec import write_json
    from utils.allocator import keep_freed_memory

    keep_freed_memory()
    spec = json.loads(Path(path).read_text())
    answer = Path(spec.pop('answer'))
    torch.set_num_threads(1)
    engine = dgc.create()
    recipe = Recipe(**spec)
    training = Training(recipe, engine, partial(wait_at, answer.parent, engine, LIFTED))
    wait_at(answer.parent, engine)
    points = []
    for point in training.curve():
        points.append(point)
        if engine.rank == 0:
            reached = f'{point["quality"]:.3f}{training.task.unit}'
            print(f'step {point["steps"]}: {point["seconds"]:.0f} s, {reached}', flush=True)
            limited = None if training.per_step is None else recipe.limited
            found = {'curve': points, 'megabytes': training.megabytes(), 'limited': limited}
            write_json(answer, found)
    engine.barrier()
    engine.close()


if __name__ == '__main__':
    main(sys.argv[1])
