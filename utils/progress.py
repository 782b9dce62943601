"""What a run prints while it trains and when it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from dgc import Engine
from dgc.reducer import Progress
from utils.build import Parts
from utils.config import Config
from utils.log import Log, metrics_lines

STEPS_BETWEEN_LOSSES = 50


def say(engine: Engine, text: str) -> None:
    """Print on rank 0."""
    if engine.rank == 0:
        print(text, flush=True)


def progress_bar(
    engine: Engine, batches: Iterable[Any], title: str, total: int, first: int
) -> Iterable[Any]:
    """``batches``, with a progress bar on rank 0, which starts at ``first`` of ``total``."""
    seconds = 0.1 if sys.stderr.isatty() else 20.0  # each update is a line in a log file
    hidden = engine.rank > 0
    return tqdm(
        *(batches, title, total),
        initial=first,
        ncols=80,
        leave=False,
        mininterval=seconds,
        delay=seconds,
        disable=hidden,
    )


class LossCurve:
    """The training loss of every step, averaged over the ranks.

    The losses of 50 steps are averaged in one collective.

    Args:
        parts: What this rank trains with.
        log: Receives a point per step.
        first_step: Number of the first step.
    """

    def __init__(self, parts: Parts, log: Log, first_step: int) -> None:
        self._engine, self._device = parts.engine, parts.device
        self._log = log
        self._step = first_step
        self._waiting: list[Tensor] = []
        self._all: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Add the loss of the next step, a scalar on this rank's device."""
        self._waiting.append(loss)
        if len(self._waiting) == STEPS_BETWEEN_LOSSES:
            self._write()

    def mean(self) -> float | None:
        """The mean over all steps and ranks; None where there was no step. A collective."""
        if self._waiting:
            self._write()
        return sum(self._all) / len(self._all) if self._all else None

    def skip(self, steps: int) -> None:
        """Leave out some steps."""
        self._step += steps

    def state_dict(self) -> dict[str, Any]:
        """The losses of the epoch: those in the curve, and those of this rank that wait."""
        waiting = [loss.detach().cpu() for loss in self._waiting]
        return {'written': list(self._all), 'waiting': waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()`` of the same epoch."""
        self._all = list(state['written'])
        self._waiting = [loss.to(self._device) for loss in state['waiting']]
        self._step += len(self._all)

    def _write(self) -> None:
        sums = self._engine.all_reduce(torch.stack(self._waiting))
        for loss in (sums / self._engine.size).tolist():
            self._log.step('loss/train', loss, self._step)
            self._all.append(loss)
            self._step += 1
        self._waiting = []


class PhaseTimer:
    """Seconds and bytes of an epoch on this rank, by phase.

    compute: forward and backward passes, data and optimizer. wait: the training loop waits for
    gradients. compress, communicate: on the engine's thread, mostly during the backward pass.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._before = asdict(self._progress)
        self._start = time.perf_counter()

    def state_dict(self) -> dict[str, float]:
        """Counters since the beginning of the epoch, and 'seconds'."""
        now = asdict(self._progress)
        since = {name: now[name] - self._before[name] for name in now}
        return {**since, 'seconds': time.perf_counter() - self._start}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Add what an earlier process counted in this epoch."""
        self._start -= state['seconds']
        self._before = {name: self._before[name] - state[name] for name in self._before}

    def measured(self) -> dict[str, float]:
        """Differences since the beginning, by name in metrics.jsonl; 'ratio' is the density."""
        since = self.state_dict()
        seconds = since.pop('seconds')
        return {
            'seconds/train': seconds,
            'seconds/compute': seconds - since['wait'],
            'seconds/compress': since['compress'],
            'seconds/communicate': since['communicate'],
            'seconds/wait': since['wait'],
            'bytes/sent': since['sent'],
            'bytes/received': since['received'],
            'bytes/dense': since['dense_sent'],
            'ratio': since['sent_elements'] / max(since['elements'], 1),
        }


class EpochMeters:
    """What training measures in an epoch.

    Args:
        parts: What this rank trains with.
        log: Receives a point per step.
        epoch: Counted from 0.

    Attributes:
        step: Steps of the epoch so far.
    """

    def __init__(self, parts: Parts, log: Log, epoch: int) -> None:
        self.step = 0
        self.phases = PhaseTimer(parts.optimizer.progress)
        self.losses = LossCurve(parts, log, epoch * len(parts.loaders['train']))

    def add(self, loss: Tensor) -> None:
        """Add the loss of a step."""
        self.losses.add(loss)
        self.step += 1

    def measured(self) -> dict[str, float]:
        """The measurements of the epoch, by name in metrics.jsonl. A collective."""
        mean = self.losses.mean()
        return {**self.phases.measured(), **({} if mean is None else {'loss/train': mean})}

    def state_dict(self) -> dict[str, Any]:
        """The measurements so far."""
        return {
            'step': self.step,
            'phases': self.phases.state_dict(),
            'losses': self.losses.state_dict(),
        }

    def skip(self, steps: int) -> None:
        """Leave out steps that another number of ranks made, whose losses are not known here."""
        self.step = steps
        self.losses.skip(steps)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()`` of the same epoch."""
        self.step = int(state['step'])
        self.phases.load_state_dict(state['phases'])
        self.losses.load_state_dict(state['losses'])


class EpochHooks:
    """What a training mode does within an epoch: nothing, unless a subclass does something.

    Attributes:
        first_step: Steps of the epoch that were made before.
    """

    first_step = 0

    def begin(self, meters: EpochMeters) -> None:
        """Called before the first batch is loaded."""

    def after_step(self, meters: EpochMeters) -> None:
        """Called after each step."""


def closing_table(folder: Path, configs: Config, engine: Engine) -> None:
    """Print a summary of the run, on rank 0."""
    lines = metrics_lines(folder / 'metrics.jsonl') if engine.rank == 0 else ()
    metric = configs.train.metric
    epochs = [numbers for _, numbers in lines if metric in numbers]
    if not epochs:
        return
    total = {name: sum(e.get(name, 0) for e in epochs) for name in epochs[-1] if '/' in name}
    rows = {
        **best_row(metric, epochs),
        'bytes sent': bytes_row(total),
        'density': f'{epochs[-1]["ratio"]:.4%} of the elements sent in the last epoch',
        **{
            f'seconds, {phase}': f'{total[f"seconds/{phase}"]:.1f}'
            for phase in ('train', 'compute', 'compress', 'communicate', 'wait')
        },
        'curves': f'tensorboard --logdir {folder.parent}  (pip install tensorboard)',
    }
    width = max(map(len, rows))
    print('\n' + '\n'.join(f'{name:<{width}}  {value}' for name, value in rows.items()), flush=True)


def best_row(metric: str | None, epochs: Sequence[dict[str, float]]) -> dict[str, str]:
    """The metric at the end and at its best; nothing where there is no metric."""
    if metric is None:
        return {}
    best = max(epoch[metric] for epoch in epochs)
    return {metric: f'{epochs[-1][metric]:.2f} at the end, {best:.2f} best'}


def bytes_row(total: dict[str, float]) -> str:
    """Bytes that one worker sent, compared with those of dense all-reduces."""
    sent, dense = total['bytes/sent'], total['bytes/dense']
    if not dense:
        return 'none: there is one worker'
    if not sent:
        return 'none: there were fewer local steps than an outer step takes'
    ratio = f'{dense / sent:,.1f}× fewer bytes'
    return f'{sent / 1e6:,.2f} MB per worker; dense would be {dense / 1e6:,.2f} MB: {ratio}'
