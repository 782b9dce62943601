"""Checkpoints of elastic workers: each saves its own state, after the same steps as the others."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from dgc.elastic import ElasticOptimizer
from dgc.elastic.optimizer import Change, name_of
from dgc.engines import LocalEngine
from utils.build import Parts
from utils.checkpoint import CheckpointError, Position
from utils.config import Config
from utils.log import RunLog
from utils.progress import EpochMeters
from utils.search import Saved, Search
from utils.training.best import Best
from utils.training.experiment import Experiment
from utils.training.saving import Preempted, Saver
from utils.training.session import load
from utils.training.stopping import StopSignals, exit_code


class Course(Protocol):
    """How far all workers are.

    Attributes:
        best: The best epoch so far.
    """

    best: Best

    @property
    def position(self) -> Position:
        """Complete epochs, and batches of all workers in the one that follows."""

    @property
    def samples(self) -> int:
        """Samples of that epoch that all workers together have used."""


class ElasticSaver(Saver):
    """Saves one worker: at the end of epochs, every so many steps or minutes, after a signal.

    All workers save after the same steps, each in its folder: parameters and all that is the same
    on all workers, and its own residual. The step in a file's name counts the batches of all
    workers in the epoch, since the steps of an epoch depend on the number of workers.

    Args:
        parts: What this worker trains with, by itself.
        configs: The resolved configuration.
        folder: This worker's.
        log: Its log.
        signals: Ask for the end of this worker.
        saved: The checkpoint that training continues from; None where it is another worker's.
        course: How far the workers are; the best epoch is written there.
    """

    def __init__(
        self,
        parts: Parts,
        configs: Config,
        folder: Path,
        log: RunLog,
        signals: StopSignals,
        saved: Saved | None,
        course: Course,
    ) -> None:
        first = course.position
        super().__init__(parts, configs, folder, log, signals, saved, first, best=course.best)
        assert isinstance(parts.optimizer, ElasticOptimizer)
        self._members, self._course = parts.optimizer.engine, course
        self._members.wish = self._wishes

    def _wishes(self) -> bool:
        """Whether it is time to save, by the clock of this worker. On the engine's thread."""
        every = self._every_minutes
        return every is not None and time.monotonic() - self._last >= 60 * every

    def between_steps(self, is_applied: bool) -> None:
        """Save where it is time to, as all workers do then, or where this one has got a signal.

        Args:
            is_applied: Whether the last step was.

        Raises:
            Preempted: After a signal.
            Stopped: Where a file cannot be written.
        """
        self._follow()
        number, _ = self._agree()
        saves = bool(self._every_steps) and self._members.committed % self._every_steps == 0
        if number or (is_applied and (saves or self._members.is_wished)):
            position = self._course.position
            if position > Position(0):
                self._save(position, None)
            if number:
                self._stop(number, position)

    def measured(self, metric: float | None) -> None:
        """Note whether the epoch that has ended is the best so far. See Saver."""
        self._follow()
        self._epochs -= 1
        super().measured(metric)
        self._course.best = self._best

    def end_epoch(self, is_last: bool) -> None:
        """Save the state after an epoch. See Saver."""
        self._follow()
        self._epochs -= 1
        super().end_epoch(is_last)

    def _follow(self) -> None:
        """Take over how far the workers are: this one may have taken the state of others."""
        self._epochs = self._course.position.epochs
        self._best = self._course.best

    def _state(self, position: Position, meters: EpochMeters | None) -> dict[str, Any]:
        """As in Saver, with the samples of the epoch so far."""
        return {**super()._state(position, None), 'samples': self._course.samples}

    def _made(self, position: Position) -> str:
        """As in Saver."""
        return f'{position.step} batches of epoch' if position.step else 'epoch'

    def _stop(self, number: int, position: Position) -> None:
        """Leave the others, which go on, and end with the checkpoint of ``position``."""
        self._members.close()
        if position > Position(0):
            super()._stop(number, position)
        text = f'{signal.Signals(number).name}: stopped before the first step'
        print(f'\ntrain.py: {text}', file=sys.stderr, flush=True)
        raise Preempted(text, exit_code(number))


def find(experiment: Experiment, worker: Path, model: nn.Module) -> Saved | None:
    """Return the last good checkpoint of this worker; None where there is none.

    Args:
        experiment: Says whether, and where, to look.
        worker: The folder of this worker in this run.
        model: Whose state it must be.

    Raises:
        CheckpointError: Where all that there are are of another model.
    """
    if not experiment.resumes:
        return None
    source = experiment.source(worker.parent) / worker.name
    growth = experiment.configs.checkpoint.most_growth
    return Search(LocalEngine(), experiment.device, source, most_growth=growth).last(model, True)


def restore(parts: Parts, saved: Saved) -> None:
    """Load a checkpoint, before the other workers are met. Raises CheckpointError if it cannot be
    used."""
    if 'elastic' not in saved.state.get('optimizer', {}):
        raise CheckpointError(f'{saved.run} was not saved by an elastic worker')
    load(parts, saved, evaluate=False)


def origin(saved: Saved | None, optimizer: ElasticOptimizer) -> str:
    """Say where training goes on, and what became of residuals, after the workers have met.

    Args:
        saved: What this worker has loaded.
        optimizer: Has met the others.
    """
    if saved is None:
        return ''
    worker = optimizer.engine.worker
    if has_taken(optimizer.changes, worker):
        return (
            f'{saved.position} in {saved.run} is not used: this worker took the state of the '
            'others, and its residual is empty'
        )
    before = {name_of(each) for each in saved.state['optimizer']['elastic']['members']}
    now = {name_of(each) for each in optimizer.engine.members}
    text = f'continues from {saved.position} in {saved.run}, with its own residual'
    if gone := sorted(before - now):
        text += f'; the residuals of {", ".join(gone)}, not there now, are not used'
    if new := sorted(now - before):
        text += f'; {", ".join(new)} had no part in it: no residual'
    return text


def has_taken(changes: list[Change], worker: str) -> bool:
    """Whether a worker has taken the state of another one in one of some changes."""
    return any(worker in change.healed for change in changes)


def is_complete(saved: Saved | None, configs: Config) -> bool:
    """Whether a checkpoint is that of the last epoch."""
    return saved is not None and saved.position.epochs >= configs.train.num_epochs
