"""What a run prints while it trains and when it ends."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgc import Engine
from dgc.engines import detect
from dgc.parameter_server import WorkerOptimizer
from dgc.progress import Progress
from utils.build import Parts, ranking
from utils.checkpoint import Checkpoints, Position, file_name
from utils.config import Config
from utils.lines import metrics_lines
from utils.log import Log
from utils.magnitudes import Magnitudes
from utils.meters import Ranking
from utils.selection import SelectionLog
from utils.terminal import duration, shown
from utils.tracing import StepTrace

STEPS_BETWEEN_LOSSES = 50


def say(engine: Engine, text: str) -> None:
    """Print on rank 0."""
    if engine.rank == 0:
        print(text, flush=True)


class ProgressLine:
    """The line of progress of an epoch: loss, samples per second, density and time left.

    The loss is that of the last step on this rank, and is copied from the device only where the
    line is written. The time left is that of the training steps that are to come.

    Args:
        parts: What this rank trains with.
        meters: Of the epoch.
        epoch, epochs: Counted from 0, and how many there are.
    """

    def __init__(self, parts: Parts, meters: EpochMeters, epoch: int, epochs: int) -> None:
        self._meters, self._progress = meters, parts.optimizer.progress
        self._parts = parts
        self._steps = len(parts.loaders['train'])
        self._epoch = epoch
        # Counted from the beginning of the epoch. Asynchronous workers may make more epochs.
        self._to_make = parts.steps(max(epochs, epoch + 1)) - epoch * self._steps
        self._begin = time.monotonic(), meters.step
        self._counted = self._progress.sent_elements, self._progress.elements

    def __str__(self) -> str:
        now, step, progress = time.monotonic(), self._meters.step, self._progress
        (start, first), (sent, elements) = self._begin, self._counted
        rate = max(step - first, 1) / max(now - start, 1e-9)  # steps per second
        density = (progress.sent_elements - sent) / max(progress.elements - elements, 1)
        loss = self._meters.losses.latest
        return '  '.join(
            (
                f'epoch {self._epoch}',
                f'{100 * step / max(self._steps, 1):3.0f} %',
                *(() if loss is None else (f'loss {loss:.4g}',)),
                f'{rate * self._parts.samples_per_step:,.0f} samples/s',
                f'density {100 * density:.3g} %',
                f'{duration(max(self._to_make - step, 0) / rate)} left',
            )
        )


def with_progress(
    parts: Parts, batches: Iterable[Any], meters: EpochMeters, epoch: int, epochs: int
) -> Iterator[Any]:
    """``batches``, with a line of progress on one rank. See ProgressLine."""
    if not shows_progress(parts):
        return iter(batches)
    line = ProgressLine(parts, meters, epoch, epochs)
    return shown(batches, line.__str__)


def shows_progress(parts: Parts) -> bool:
    """Whether this rank shows the line: rank 0; of a launcher's asynchronous workers, the first,
    which is rank 1, since rank 0 serves."""
    if isinstance(parts.optimizer, WorkerOptimizer) and detect().size > 1:
        return detect().rank == 1
    return parts.engine.rank == 0


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
        self._step = first_step  # of the first loss that waits
        self._skipped = 0
        self._waiting: list[Tensor] = []
        self._places: list[int] = []  # of these on the curve
        self._all: list[float] = []
        self._latest: Tensor | None = None

    @property
    def latest(self) -> float | None:
        """The loss of the last step on this rank, copied from its device; None before a step."""
        return None if self._latest is None else float(self._latest)

    def add(self, loss: Tensor) -> None:
        """Add the loss of the next step, a scalar on this rank's device."""
        self._places.append(self._log.place(self._step + len(self._waiting)))
        self._waiting.append(loss)
        self._latest = loss
        if len(self._waiting) == STEPS_BETWEEN_LOSSES:
            self._write()

    def mean(self) -> float | None:
        """The mean over all steps and ranks; None where there was no step. A collective."""
        if self._waiting:
            self._write()
        return sum(self._all) / len(self._all) if self._all else None

    def skip(self, steps: int) -> None:
        """Leave out some steps."""
        self._skipped += steps
        self._step += steps

    def state_dict(self) -> dict[str, Any]:
        """The losses of the epoch: those in the curve, and those of this rank that wait; and how
        many were left out before them."""
        waiting = [loss.detach().cpu() for loss in self._waiting]
        return {'written': list(self._all), 'waiting': waiting, 'skipped': self._skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()`` of the same epoch."""
        self.skip(int(state.get('skipped', 0)))  # which an earlier version did not save
        self._all = list(state['written'])
        self._waiting = [loss.to(self._device) for loss in state['waiting']]
        self._step += len(self._all)
        self._places = [self._log.place(self._step + i) for i in range(len(self._waiting))]

    def _write(self) -> None:
        sums = self._engine.all_reduce(torch.stack(self._waiting))
        losses = (sums / self._engine.size).tolist()
        for loss, place in zip(losses, self._places, strict=True):
            self._log.point('loss/train', loss, place)
        self._all += losses
        self._step += len(losses)
        self._waiting, self._places = [], []


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
        # A checkpoint of an earlier version has fewer counters.
        self._before = {name: self._before[name] - state.get(name, 0) for name in self._before}

    def measured(self) -> dict[str, float]:
        """Differences since the beginning, by name in metrics.jsonl; 'ratio' is the density."""
        since = self.state_dict()
        seconds = since.pop('seconds')
        return {
            'steps': since['steps'],
            'seconds/train': seconds,
            'seconds/compute': seconds - since['wait'],
            'seconds/compress': since['compress'],
            'seconds/communicate': since['communicate'],
            'seconds/wait': since['wait'],
            'bytes/sent': since['sent'],
            'bytes/received': since['received'],
            'bytes/dense': since['dense_sent'],
            'path/messages': since['rounds'],
            'path/bytes': since['path'],
            'ratio': since['sent_elements'] / max(since['elements'], 1),
        }


class EpochMeters:
    """What training measures in an epoch.

    Args:
        parts: What this rank trains with.
        log: Receives a point per step.
        epoch: Counted from 0.
        settings: ``configs.log``.

    Attributes:
        step: Steps of the epoch so far.
    """

    def __init__(self, parts: Parts, log: Log, epoch: int, settings: Config) -> None:
        self.step = 0
        self._parts, self._samples = parts, 0  # of the steps that are measured
        self._dataset = getattr(parts.loaders['train'], 'dataset', None)
        self._first = epoch * len(parts.loaders['train'])
        self._magnitudes = Magnitudes(parts, log, settings.histogram_steps, self._first)
        self._selection = SelectionLog(parts, log, settings.selection_steps, self._first)
        self._trace = StepTrace(parts, log, settings.trace_steps, self._first)
        self._trace.before_step(self._first)
        self.phases = PhaseTimer(parts.optimizer.progress)
        self.losses = LossCurve(parts, log, epoch * len(parts.loaders['train']))

    def before_exchange(self) -> None:
        """To be called when the gradients of a step are complete, before the optimizer's step."""
        self._magnitudes.before_exchange(self._first + self.step)

    def add(self, loss: Tensor) -> None:
        """Add the loss of a step, after the optimizer's step."""
        self._magnitudes.after_exchange(self._first + self.step)
        self._selection.after_exchange(self._first + self.step)
        self.losses.add(loss)
        self.step += 1
        self._samples += self._parts.samples_per_step
        self._trace.before_step(self._first + self.step)

    def measured(self) -> dict[str, float]:
        """The measurements of the epoch, by name in metrics.jsonl. A collective."""
        self._trace.finish()
        mean, phases = self.losses.mean(), self.phases.measured()
        return {
            **phases,
            **self._speed(phases['seconds/train']),
            **self._selection.measured(),
            **({} if mean is None else {'loss/train': mean}),
        }

    def _speed(self, seconds: float) -> dict[str, float]:
        """Samples of all workers per second and, of a text, tokens."""
        samples = self._samples / max(seconds, 1e-9)
        tokens = getattr(self._dataset, 'tokens_per_sample', None)
        return {
            'speed/samples': samples,
            **({} if tokens is None else {'speed/tokens': tokens * samples}),
        }

    def state_dict(self) -> dict[str, Any]:
        """The measurements so far."""
        return {
            'step': self.step,
            'samples': self._samples,
            'phases': self.phases.state_dict(),
            'losses': self.losses.state_dict(),
            'selection': self._selection.state_dict(),
        }

    def skip(self, steps: int) -> None:
        """Leave out steps that another number of ranks made, whose losses are not known here."""
        self.step = steps
        self.losses.skip(steps)
        self._before_step()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()`` of the same epoch."""
        self.step = int(state['step'])
        self._samples = int(state.get('samples', self.step * self._parts.samples_per_step))
        self.phases.load_state_dict(state['phases'])
        self.losses.load_state_dict(state['losses'])
        self._selection.load_state_dict(state.get('selection', {}))
        self._before_step()

    def _before_step(self) -> None:
        """Measure the next step, if it is due: the epoch is continued within."""
        step = self._first + self.step
        for each in (self._magnitudes, self._selection, self._trace):
            each.before_step(step)


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
    epochs = summed_lines((numbers for _, numbers in lines), metric)
    if not epochs:
        return
    total = {name: sum(e.get(name, 0) for e in epochs) for name in epochs[-1] if '/' in name}
    rows = {
        **best_row(metric, epochs, ranking(configs)),
        'bytes sent': bytes_row(total),
        'density': f'{epochs[-1]["ratio"]:.4%} of the elements sent in the last epoch',
        **{
            f'seconds, {phase}': f'{total[f"seconds/{phase}"]:.1f}'
            for phase in ('train', 'compute', 'compress', 'communicate', 'wait')
        },
        **where_to_look(folder),
    }
    width = max(map(len, rows))
    print('\n' + '\n'.join(f'{name:<{width}}  {value}' for name, value in rows.items()), flush=True)


def where_to_look(folder: Path) -> dict[str, str]:
    """Rows of a closing table: how to see the run, and where its best model is.

    Args:
        folder: The run folder, as rank 0 sees it.
    """
    model, runs = best_model(folder), shlex.quote(str(folder.parent))
    return {
        'report': f'python -m tools.report {runs}',
        'curves': f'tensorboard --logdir {runs}  (pip install tensorboard)',
        **({} if model is None else {'best model': str(model)}),
    }


def best_model(folder: Path) -> Path | None:
    """The checkpoint of the best epoch, of rank 0, or else the last one; None where there is
    none."""
    checkpoints = Checkpoints(folder / 'checkpoints')
    saved = dict(checkpoints.saved())
    best = checkpoints.best()
    position = max(saved, default=None) if best is None else Position(best + 1)
    if position not in saved:
        return None
    return checkpoints.folder / file_name(position, 0, saved[position])


def summed_lines(epochs: Iterable[dict[str, float]], metric: str | None) -> list[dict[str, float]]:
    """The epochs that a closing table sums up: those with a density and, where there is one, with
    the metric. A run that was resumed may have had another one."""
    wanted = {'ratio'} if metric is None else {'ratio', metric}
    return [numbers for numbers in epochs if wanted <= numbers.keys()]


def best_row(
    metric: str | None, epochs: Sequence[dict[str, float]], which: Ranking
) -> dict[str, str]:
    """The metric at the end and at its best; nothing where there is no metric."""
    if metric is None:
        return {}
    best = which.best(epoch[metric] for epoch in epochs)
    return {metric: f'{digits(epochs[-1][metric])} at the end, {digits(best)} best'}


def digits(value: float) -> str:
    """A measurement: two decimals, or four significant digits of a small one, as of a loss."""
    return f'{value:.2f}' if abs(value) >= 10 or value == 0 else f'{value:.4g}'


def bytes_row(total: dict[str, float]) -> str:
    """Bytes that one worker sent, compared with those of dense all-reduces."""
    sent, dense = total['bytes/sent'], total['bytes/dense']
    if not dense:
        return 'none: there is one worker'
    if sent == dense:
        return f'{sent / 1e6:,.2f} MB per worker, uncompressed'
    if not sent:
        return 'none: there were fewer local steps than an outer step takes'
    ratio = f'{dense / sent:,.1f}× fewer bytes'
    return f'{sent / 1e6:,.2f} MB per worker; dense would be {dense / 1e6:,.2f} MB: {ratio}'
