"""One training of bench.optimizers: a character-level GPT with simulated workers in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import dgc
from dgc.memory import Memory, MomentumCorrection, Residual
from models.language import TransformerLanguageModel

WIDTH, LAYERS, HEADS, CONTEXT = 64, 2, 4, 64
VALIDATED = 256  # sequences of CONTEXT characters, from the last tenth of the text
RISE, FLOOR = 0.05, 0.1  # the part of the steps in which the rate rises; the last over the highest

Named = list[tuple[str, Parameter]]


@dataclass(frozen=True)
class Run:
    """What to train; every field is in a line of the results.

    Attributes:
        optimizer: Of ROWS.
        lr: Its highest learning rate.
        density: Of the messages; 1 for uncompressed.
        warmup_steps: Steps in which the density falls.
        steps: Optimizer steps.
        workers: Number of simulated ranks.
        batch: Sequences per worker and step.
        seed: Of the weights and of the order of the data.
    """

    optimizer: str
    lr: float
    density: float
    warmup_steps: int
    steps: int
    workers: int
    batch: int
    seed: int


class Row(NamedTuple):
    """An optimizer, and the memory that goes with it.

    Attributes:
        make: Returns the optimizers of named parameters, at a rate.
        lr: The best of the rates that were tried without compression.
        memory: Makes the error feedback.
    """

    make: Callable[[Named, float], list[Optimizer]]
    lr: float
    memory: Callable[[], Memory] = Residual


def single(kind: Callable[..., Optimizer], **settings: Any) -> Callable[..., list[Optimizer]]:
    """Return what makes one optimizer for all parameters."""
    return lambda named, lr: [kind([p for _, p in named], lr=lr, **settings)]


def muon_and_adamw(named: Named, lr: float) -> list[Optimizer]:
    """Return Muon for the matrices of the blocks, and AdamW for everything else."""
    matrices = [p for name, p in named if name.startswith('blocks') and p.dim() == 2]
    chosen = set(matrices)
    others = [p for _, p in named if p not in chosen]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, adjust_lr_fn='match_rms_adamw'),
        torch.optim.AdamW(others, lr=lr, weight_decay=0.1),
    ]


SGD = partial(torch.optim.SGD, momentum=0.9)
ROWS = {
    'adamw': Row(single(torch.optim.AdamW, weight_decay=0.1), 3e-3),
    'adam': Row(single(torch.optim.Adam), 3e-3),
    'nadam': Row(single(torch.optim.NAdam), 3e-3),
    'rmsprop': Row(single(torch.optim.RMSprop), 3e-3),
    'adafactor': Row(single(torch.optim.Adafactor), 3e-2),
    'muon+adamw': Row(muon_and_adamw, 3e-3),
    'sgd': Row(single(SGD), 0.3),
    'dgcsgd': Row(single(dgc.DGCSGD, momentum=0.9), 0.3, MomentumCorrection),
}


class Text:
    """Characters as numbers: the first nine tenths for training, the rest for validation."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        known = {character: number for number, character in enumerate(sorted(set(text)))}
        self.vocabulary = len(known)
        numbers = torch.tensor([known[character] for character in text])
        self.train, self.validation = numbers.tensor_split([len(numbers) * 9 // 10])

    def batch(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return ``size`` random sequences of the training part, and what follows."""
        starts = torch.randint(len(self.train) - CONTEXT, (size,), generator=draw).tolist()
        return windows(self.train, starts)

    def validated(self) -> tuple[Tensor, Tensor]:
        """Return evenly spaced sequences of the validation part."""
        step = (len(self.validation) - CONTEXT - 1) // VALIDATED
        return windows(self.validation, range(0, VALIDATED * step, step))


def windows(numbers: Tensor, starts: Any) -> tuple[Tensor, Tensor]:
    """Return the sequences that begin at ``starts``, and the same one character later."""
    rows = torch.stack([numbers[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def rate_at(step: int, steps: int, lr: float) -> float:
    """Return the learning rate: a linear rise, then a cosine."""
    rise = max(round(RISE * steps), 1)
    if step < rise:
        return lr * (step + 1) / rise
    falling = (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))) / 2
    return lr * (FLOOR + (1 - FLOOR) * falling)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy per character, in nats."""
    inputs, targets = batch
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def work(run: Run, text: Text, engine: dgc.Engine) -> dict[str, float]:
    """Train as one worker; return its result."""
    torch.manual_seed(run.seed)
    model = TransformerLanguageModel(text.vocabulary, WIDTH, LAYERS, HEADS, CONTEXT, dropout=0.0)
    named, row = list(model.named_parameters()), ROWS[run.optimizer]
    optimizers = [
        dgc.DistributedOptimizer(each, named, composition(run, row), engine)
        for each in row.make(named, run.lr)
    ]
    draw = torch.Generator().manual_seed(run.seed * 1000 + engine.rank)
    for step in range(run.steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group['lr'] = rate_at(step, run.steps, run.lr)
        loss_of(model, text.batch(run.batch, draw)).backward()
        for optimizer in optimizers:
            optimizer.step()
    with torch.inference_mode():
        loss = loss_of(model.eval(), text.validated()).item() if engine.rank == 0 else math.nan
    return {'loss': loss, 'megabytes': sum(each.progress.sent for each in optimizers) / 1e6}


def composition(run: Run, row: Row) -> dgc.Composition:
    """Return the parts of a run."""
    return dgc.deep_gradient_compression(
        run.density, warmup_steps=run.warmup_steps, memory=row.memory(), indices='int32'
    )


def train(run: Run, text: Text) -> dict[str, float]:
    """Return the validation loss at the end, the megabytes that a worker sent, and seconds."""
    start = time.perf_counter()
    first, *_ = dgc.simulate(run.workers, partial(work, run, text))
    return {**first, 'seconds': round(time.perf_counter() - start, 1)}
