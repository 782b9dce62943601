"""One worker of bench.accuracy, started by torchrun: `-m bench.accuracy_worker SPEC`."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.rows import Make, Trained, composition, ddp
from tools.harness.algorithms import DENSITY, WITHIN_DGC, algorithm

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from dgc import Composition, Engine

LR = 0.1  # of four workers of batch 32, after the first epoch
WARMUP = 2  # epochs in which the density falls
SEED = 42


@dataclass(frozen=True)
class Recipe:
    """What to train.

    row: of ROWS. root: folder of the images, of which the first ``images`` are trained with.
    batch: samples per worker and step.
    """

    row: str
    root: str
    images: int
    batch: int
    epochs: int


class Compressed(NamedTuple):
    """A row of Deep Gradient Compression: with which algorithm's exchange, at which density."""

    algorithm: str
    density: float = DENSITY


ROWS: dict[str, Compressed | None] = {  # None: DistributedDataParallel
    'ddp': None,
    'dgc': Compressed('dgc'),
    'dgc 1 %': Compressed('dgc', 0.01),
    'gtopk': Compressed('gtopk'),
    'gtopk 1 %': Compressed('gtopk', 0.01),
    'spardl': Compressed('spardl'),
    'spardl 1 %': Compressed('spardl', 0.01),
    'oktopk 1 %': Compressed('oktopk', 0.01),
}


def maker(name: str, steps_per_epoch: int) -> Make:
    """What makes a row's network and optimizer; its density falls for WARMUP epochs."""
    row = ROWS[name]
    if row is None:
        return ddp

    def compressed() -> Composition:
        warmup = {'warmup_epochs': WARMUP, 'warmup_stage_steps': steps_per_epoch}
        return algorithm(row.algorithm, row.density, **WITHIN_DGC, **warmup)

    return composition(compressed)


def rate_at(step: int, steps: int, epochs: int) -> float:
    """Learning rate: one epoch of linear warm-up, then a cosine to zero. steps: per epoch."""
    if step < steps:
        return LR * (step + 1) / steps
    return LR * (1 + math.cos(math.pi * (step - steps) / (steps * (epochs - 1) or 1))) / 2


class Training:
    """The training of a row on one worker."""

    def __init__(self, recipe: Recipe, engine: Engine) -> None:
        import torch

        from datasets import CIFAR
        from models.cifar import resnet20
        from utils.data import evaluation_loader, train_loader

        images = CIFAR(recipe.root, download=False, verify=False, num_train=recipe.images)
        rank, size = engine.rank, engine.size
        self.loader, self.share = train_loader(images['train'], recipe.batch, rank, size, SEED)
        self.test = evaluation_loader(images['test'], 250, rank, size)
        torch.manual_seed(SEED)
        make = maker(recipe.row, len(self.loader))
        self.engine, self.epochs = engine, recipe.epochs
        self.trained: Trained = make(resnet20(10).train(), engine, None)
        torch.manual_seed(SEED + rank)  # augmentation

    def epoch(self, number: int) -> float:
        """Make one pass over the training images; return its seconds."""
        from torch.nn.functional import cross_entropy

        network, optimizer = self.trained.network.train(), self.trained.optimizer
        self.share.epoch = number
        steps = len(self.loader)
        self.engine.barrier()
        start = time.perf_counter()
        for step, (inputs, targets) in enumerate(self.loader, number * steps):
            for group in optimizer.param_groups:
                group['lr'] = rate_at(step, steps, self.epochs)
            optimizer.zero_grad()
            cross_entropy(network(inputs), targets).backward()
            optimizer.step()
        self.engine.barrier()
        return time.perf_counter() - start

    def accuracy(self) -> float:
        """Percentage of all test images, with BatchNorm's statistics averaged over the workers."""
        import torch

        import dgc

        network = self.trained.network.eval()
        dgc.average_tensors(self.engine, network.buffers())
        with torch.inference_mode():
            right = sum(int((network(x).argmax(1) == y).sum()) for x, y in self.test)
        counts = torch.tensor([float(right), float(count(self.test))])
        right, total = self.engine.all_reduce(counts).tolist()
        return 100 * right / total

    def megabytes(self) -> float:
        """Gradients that this worker has sent so far, in 10⁶ bytes; for DDP, those of a ring."""
        if self.trained.ours is not None:
            return self.trained.ours.reducer.progress.sent / 1e6
        parameters = sum(p.numel() for p in self.trained.network.parameters())
        size, steps = self.engine.size, len(self.loader) * self.epochs
        return 2 * (size - 1) / size * 4 * parameters * steps / 1e6


def count(loader: DataLoader) -> int:
    """Number of this worker's images."""
    return len(loader.sampler)  # type: ignore[arg-type]


def main(path: str) -> None:
    """Train what the specification at ``path`` asks for; rank 0 answers after every epoch."""
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
    training = Training(Recipe(**spec), engine)
    wait_at(answer.parent, engine)
    seconds, epochs = 0.0, []
    for number in range(training.epochs):
        seconds += training.epoch(number)
        epochs.append({'seconds': seconds, 'accuracy': training.accuracy()})
        if engine.rank == 0:
            print(f'epoch {number}: {seconds:.0f} s, {epochs[-1]["accuracy"]:.2f} %', flush=True)
            write_json(answer, {'epochs': epochs, 'megabytes': training.megabytes()})
    engine.barrier()
    engine.close()


if __name__ == '__main__':
    main(sys.argv[1])
