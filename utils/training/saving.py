"""Checkpoints of synchronous training: when they are saved, and their writing beside training."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dgc import Engine
from dgc.handshake import gather_text
from dgc.parameter_server import WorkerOptimizer
from utils.agree import agreed
from utils.build import Parts, ranking
from utils.carried import carried_by, carry
from utils.checkpoint import Checkpoints, Position, not_finite
from utils.cli import Stopped
from utils.config import Config
from utils.log import RunLog
from utils.norms import exploded, norm
from utils.progress import EpochHooks, EpochMeters
from utils.sealed import snapshot
from utils.search import Saved
from utils.seeding import random_state, set_random_state
from utils.training.best import Best
from utils.training.stopping import SIGNALS, Agreement, StopSignals, exit_code

UNKNOWN = Best()

log = logging.getLogger(__name__)


class Preempted(Exception):
    """Training has ended after a signal, on all ranks, with a checkpoint.

    Attributes:
        code: The exit code of every rank.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Writer:
    """Writes this rank's checkpoints on a thread, one at a time.

    Args:
        checkpoints: Where to.
        model: Whose state it is. What it is built with, such as the -inf of a mask, need not be
            finite.
        norm: Of the weights in the checkpoint that training continues from; None for none.
    """

    def __init__(self, checkpoints: Checkpoints, model: nn.Module, norm: float | None) -> None:
        self.checkpoints = checkpoints
        self._infinite = not_finite(model.state_dict())
        self._weights = [name for name, _ in model.named_parameters() if name not in self._infinite]
        self._norm = norm
        self._pool = ThreadPoolExecutor(1, thread_name_prefix='dgc-checkpoint')
        self._pending: Future[float] | None = None

    def start(self, position: Position, state: dict[str, Any]) -> None:
        """Begin to write ``state``, a copy which is changed by no other thread."""
        self._pending = self._pool.submit(self._write, position, state)

    def _write(self, position: Position, state: dict[str, Any]) -> float:
        """Write a checkpoint; returns the norm of its weights, NaN where they are not finite."""
        model = state['model']
        is_finite = not_finite(model) <= self._infinite
        value = norm(model, self._weights) if is_finite else math.nan
        self.checkpoints.save(position, state, (value, self._norm))
        return value

    def wait(self) -> float | None:
        """Wait for the file. Raises WriteError where it cannot be written.

        Returns:
            The norm of its weights; None where no file is pending.
        """
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def accept(self, value: float) -> None:
        """Compare later checkpoints with this norm."""
        self._norm = value

    def has_exploded(self, value: float) -> bool:
        """Whether weights of this norm are never gone on from."""
        return exploded(value, self._norm, self.checkpoints.most_growth)

    @property
    def has_failed(self) -> bool:
        """Whether ``wait`` would raise an exception by now."""
        pending = self._pending
        return pending is not None and pending.done() and pending.exception() is not None

    def close(self) -> None:
        """Wait for the thread."""
        self._pool.shutdown()


def draw_start(engine: Engine, device: torch.device) -> str:
    """A random text, the same on all ranks: checkpoints of another start are told by it."""
    return gather_text(engine, secrets.token_hex(8), device, limit=16)[0]


class Saver(EpochHooks):
    """Saves a run: at the end of epochs, every so many steps or minutes, and after a signal.

    A checkpoint is a copy of the state, which a thread writes while training goes on. Before the
    next one, and at the end, the ranks wait for their files and agree that all are complete; only
    then are older files removed. So at any time there is a complete checkpoint on all disks.

    Args:
        parts: What this rank trains with.
        configs: The resolved configuration.
        folder: The run folder.
        log: Its log.
        signals: Ask for the end of the run.
        saved: The checkpoint that training continues from; None for a new run.
        first: Its position in steps of this run.
        checks: Called with the position after each step, before anything is saved.
        best: The best epoch before ``first``.

    Attributes:
        step: Steps of the epoch so far, also at its end.
    """

    def __init__(
        self,
        parts: Parts,
        configs: Config,
        folder: Path,
        log: RunLog,
        signals: StopSignals,
        saved: Saved | None,
        first: Position,
        checks: Sequence[Callable[[Position], None]] = (),
        best: Best = UNKNOWN,
    ) -> None:
        engine = parts.engine
        self._parts, self._log, self._signals, self._checks = parts, log, signals, checks
        assert not isinstance(parts.optimizer, WorkerOptimizer)  # that of a parameter server
        self._optimizer = parts.optimizer
        self._waits_for_skips = configs.rollback.after_skips is not None
        self._every_steps = configs.checkpoint.every_steps
        self._every_minutes = configs.checkpoint.every_minutes
        self._epochs, self.first_step = first
        self.step = first.step
        self._cut: dict[str, Any] | None = None  # where num_steps ends training within an epoch
        self._meters = meters_of(saved, engine, first)
        self._ranking, self._metric, self._best = ranking(configs), configs.train.metric, best
        start = draw_start(engine, parts.device)
        most = configs.checkpoint.most_growth
        own = folder / 'checkpoints', engine.rank, engine.size, start, most
        self.checkpoints = Checkpoints(*own, configs.checkpoint.keep_epochs)
        with agreed(engine, parts.device, Stopped):
            self.checkpoints.remove_partial()
            self.checkpoints.record_best(best.epoch)
        self._writer = Writer(self.checkpoints, parts.model, None if saved is None else saved.norm)
        self._exploded: Position | None = None  # the last checkpoint that is never gone on from
        self._agreement = Agreement(engine, parts.device)
        self._unfinished: tuple[Position, int | None] | None = None
        self._last = time.monotonic()
        self._seconds = 0.0

    # ------------------------------------------------------------ within an epoch

    def begin(self, meters: EpochMeters) -> None:
        """Restore what is of the epoch that is continued. See EpochHooks."""
        if self._meters is None:
            meters.skip(self.first_step)
        else:
            meters.load_state_dict(self._meters)
            set_random_state(self._meters['random'], self._parts.device)
            carry(self._parts.model, self._meters.get('carried', []))
        self._meters = None
        self._note(meters)

    def _note(self, meters: EpochMeters) -> None:
        """Note how far the epoch is and, where training ends within it, what it would go on from:
        before the evaluation, and with the best epoch before this one."""
        self.step = meters.step
        if self._parts.is_complete and self.step < len(self._parts.loaders['train']):
            self._cut = {**self._within(meters), **self._best_so_far()}

    def after_step(self, meters: EpochMeters) -> None:
        """Save where it is time to, or where a rank has got a signal. See EpochHooks.

        Raises:
            Preempted: On all ranks, after a signal to one of them.
            Stopped: On all ranks, where one cannot write its files.
            RolledBack, AgreementError: On all ranks, by the checks.
        """
        self._note(meters)
        position = Position(self._epochs, meters.step)
        for check in self._checks:
            check(position)
        is_last = meters.step == len(self._parts.loaders['train'])
        saves = bool(self._every_steps) and self._parts.optimizer.steps % self._every_steps == 0
        number = 0
        if self._agreement.is_due() or is_last:
            number, is_time = self._agree()
            saves |= is_time
        # Training may go back to before the steps that are being skipped.
        saves &= not (self._waits_for_skips and self._optimizer.skips > 0)
        if number or (saves and not is_last):  # which the end of the epoch saves
            self._save(position, meters)
        if number:
            self._stop(number, position)

    def _agree(self) -> tuple[int, bool]:
        """Return the signal that a rank has got, 0 for none, and whether it is time to save."""
        minutes = (time.monotonic() - self._last) / 60
        is_time = self._every_minutes is not None and minutes >= self._every_minutes
        is_first = self._parts.engine.rank == 0  # whose clock counts
        own = [self._signals.received == number for number in SIGNALS]
        sums = self._agreement.sums([*own, is_first and is_time, self._writer.has_failed])
        if sums[-1]:
            self.settle()  # raises on all ranks
        got = [number for number, ranks in zip(SIGNALS, sums, strict=False) if ranks]
        return (int(got[0]) if got else 0), bool(sums[-2])

    # ------------------------------------------------------------ the end of an epoch

    def measured(self, metric: float | None) -> None:
        """Note whether the epoch that ends is the best so far; without a metric the last is."""
        if metric is None or self._ranking.improves(metric, self._best.value):
            self._best = Best(metric, self._epochs)

    def end_epoch(self, is_last: bool) -> None:
        """Save the state after an epoch; after the last one, wait until it is on all disks.

        A checkpoint of an epoch that is cut short has, beside what was evaluated, from where
        training goes on (``Saved.within_epoch``).

        Raises:
            Preempted, Stopped: As ``after_step``.
        """
        self._epochs, self.first_step = self._epochs + 1, 0
        position = Position(self._epochs)
        self._save(position, None)
        self._cut = None
        if is_last:
            self.settle()
            return
        number, _ = self._agree()
        if number:
            self._stop(number, position)

    # ------------------------------------------------------------ writing

    def _save(self, position: Position, meters: EpochMeters | None) -> None:
        """Copy the state, and begin to write it. A collective.

        Args:
            position: Of the state.
            meters: Of the epoch, within one.
        """
        start = time.perf_counter()
        self.settle()
        with agreed(self._parts.engine, self._parts.device, Stopped):
            self._log.flush()
        self._writer.start(position, snapshot(self._state(position, meters)))
        self._unfinished = position, self._best.epoch
        self._last = time.monotonic()
        self._seconds += time.perf_counter() - start

    def _state(self, position: Position, meters: EpochMeters | None) -> dict[str, Any]:
        """What a checkpoint holds. See ``_save``."""
        state = {
            **self._parts.state_dict(),
            'epoch': position.epoch,
            **self._best_so_far(),
            'best_metric': self._metric,
        }
        if meters is not None:
            state |= self._within(meters)
        elif self._cut is not None:
            state['cut'] = self._cut
        return state

    def _best_so_far(self) -> dict[str, Any]:
        """The best epoch, as a checkpoint has it."""
        return {'best': self._best.value, 'best_epoch': self._best.epoch}

    def _within(self, meters: EpochMeters) -> dict[str, Any]:
        """What a checkpoint within an epoch holds of it."""
        # Random numbers last: simulated ranks share the generators, and the other ranks may draw
        # while this one waits for them.
        random = random_state(self._parts.device)
        carried = carried_by(self._parts.model)
        return {
            'samples': meters.step * self._parts.samples_per_step,
            'meters': {**meters.state_dict(), 'random': random, 'carried': carried},
        }

    def replace(self, saved: Saved, position: Position) -> None:
        """Write a checkpoint anew, with what a rollback has changed in it. A collective.

        It is left where it is after another number of ranks, each of which has a file.
        """
        if saved.size != self._parts.engine.size or saved.position != position:
            return
        state = {name: value for name, value in saved.state.items() if name != 'manifest'}
        manifest = saved.state.get('manifest', {})
        norms = [manifest.get(name) for name in ('norm', 'norm_before')]
        with agreed(self._parts.engine, self._parts.device, Stopped):
            self.checkpoints.save(position, state, norms)
            self.checkpoints.finish(position, self._best.epoch)

    def seconds(self) -> float:
        """The seconds for which saving has held up training since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def has_saved(self) -> bool:
        """Whether this rank has a checkpoint of the run, now that its last one is written."""
        with contextlib.suppress(Exception):  # what stopped training is said in its place
            self._writer.wait()
        return bool(self.checkpoints.saved())

    def settle(self) -> None:
        """Wait until the last checkpoint is complete on all ranks; remove older ones. A collective.

        Raises:
            Stopped: On all ranks, where one of them could not write its file.
        """
        if self._unfinished is None:
            return
        (position, best_epoch), self._unfinished = self._unfinished, None
        engine, device = self._parts.engine, self._parts.device
        value = None
        with agreed(engine, device, Stopped):  # a disk may be full on one machine
            value = self._writer.wait()
        if value is None:  # ``has_saved`` has waited, after an error
            return
        # Local steps have weights of their own on each rank.
        bad = torch.tensor([float(self._writer.has_exploded(value))], device=device)
        if engine.all_reduce(bad) > 0:
            self._keep_aside(position, value)
            return
        self._writer.accept(value)
        with agreed(engine, device, Stopped):
            self.checkpoints.finish(position, best_epoch)

    def _keep_aside(self, position: Position, value: float) -> None:
        """Keep the last good checkpoints, and one whose weights have exploded: the latest."""
        if self._exploded is not None:
            self.checkpoints.discard(self._exploded)
        self._exploded = position
        log.warning(
            'the checkpoint %s is never gone on from: its weights have exploded or are not finite '
            '(their norm on rank %d is %.3g)',
            *(position, self._parts.engine.rank, value),
        )

    def _made(self, position: Position) -> str:
        """What was made before a position, to be followed by the number of its epoch."""
        return f'{position.step} steps of epoch' if position.step else 'epoch'

    def _stop(self, number: int, position: Position) -> None:
        """End training on all ranks, with the checkpoint of ``position``."""
        self.settle()
        text = (
            f'{signal.Signals(number).name}: stopped after {self._made(position)} '
            f'{position.epoch}, which is saved '
            f'in {self.checkpoints.folder} ({position}): --resume continues there'
        )
        if self._parts.engine.rank == 0:
            print(f'\ntrain.py: {text}', file=sys.stderr, flush=True)
        self._parts.engine.barrier()  # launchers end the other ranks once one has ended
        raise Preempted(text, exit_code(number))

    def close(self) -> None:
        """End the thread."""
        self._writer.close()


def meters_of(saved: Saved | None, engine: Engine, first: Position) -> dict[str, Any] | None:
    """The measurements of the epoch that is continued, where it goes on at the same step.

    None at another number of ranks or batch size: the measurements are those of the rest then.
    """
    if saved is None or (saved.size, saved.position) != (engine.size, first):
        return None
    return saved.state.get('meters')
