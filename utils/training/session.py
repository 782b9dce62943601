"""One rank of a run of synchronous training, between its start and its end."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor, nn
from torch.utils.data import Dataset

from dgc import Engine, NonFiniteGradientError
from dgc.handshake import check_agreement
from dgc.parameter_server import WorkerOptimizer
from utils.agree import agreed
from utils.build import Parts, build
from utils.checkpoint import CheckpointError, Checkpoints, Position
from utils.cli import Stopped
from utils.config import Config
from utils.log import RunLog, start_log
from utils.progress import closing_table, digits, say
from utils.ranks import of_each_rank, residual_norm
from utils.search import Saved, Search
from utils.selection import check_selection
from utils.tracing import check_trace
from utils.training.best import best_before
from utils.training.comparing import Agreeing
from utils.training.evaluation import evaluate_several, evaluates_several
from utils.training.experiment import Experiment, with_remedy
from utils.training.rollback import Rollbacks, RolledBack, SkippedSteps, check_skips
from utils.training.saving import Preempted, Saver, meters_of
from utils.training.stopping import StopSignals


class Session:
    """One rank of a run, from its start, or from a checkpoint, to its end.

    Args:
        experiment: What is trained.
        engine: Carries messages.
        signals: Ask for the end of the run.
        datasets: By split.
        folder: The run folder.
    """

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        signals: StopSignals,
        datasets: dict[str, Dataset],
        folder: Path,
    ) -> None:
        self._experiment, self._engine, self._signals = experiment, engine, signals
        self._datasets, self._folder = datasets, folder
        self._source = experiment.source(folder)
        self._rollbacks = Rollbacks(experiment.configs.rollback)

    def evaluate(self) -> int:
        """Print every meter; returns the exit code."""
        experiment, engine = self._experiment, self._engine
        if evaluates_several(experiment):
            evaluate_several(experiment, engine, self._datasets, self._source)
            return 0
        parts, saved, _ = self._build(self._find)
        assert saved is not None
        say(engine, f'evaluates {saved.about}')
        for name, value in experiment.evaluate(parts, experiment.configs).items():
            say(engine, f'[{name}] = {digits(value)}')
        return 0

    def train(self) -> int:
        """Train to the end, with rollbacks; returns the exit code."""
        find, goes_on = self._find, self._experiment.continues(self._folder)
        while True:
            try:
                return self._train(find, goes_on)
            except RolledBack as skipped:
                with agreed(self._engine, self._experiment.device, Stopped):
                    self._rollbacks.count(skipped)
                find, goes_on = partial(self._find_before, skipped), True

    def _find(self, model: nn.Module) -> Saved | None:
        """The checkpoint that the command line asks for."""
        experiment, evaluate = self._experiment, bool(self._experiment.arguments.evaluate)
        if not (evaluate or experiment.resumes):
            return None
        growth = experiment.configs.checkpoint.most_growth
        search = Search(self._engine, experiment.device, self._source, evaluate, growth)
        return search.last(model, anew=experiment.is_auto and not evaluate)

    def _find_before(self, skipped: RolledBack, model: nn.Module) -> Saved:
        """The checkpoint before steps that were skipped, with a lower learning rate.

        Raises:
            Stopped: On all ranks, where there is none.
        """
        experiment, device = self._experiment, self._experiment.device
        growth = experiment.configs.checkpoint.most_growth
        search = Search(self._engine, device, self._folder, False, growth, skipped.before)
        try:
            saved = search.last(model)
        except CheckpointError as error:
            raise Stopped(f'{skipped}, and there is nothing to go back to: {error}') from error
        assert saved is not None
        factor = self._rollbacks.factor(saved)
        say(
            self._engine,
            f'{skipped}: going back to {saved.position}, with the learning rate times {factor:g}',
        )
        return replace(saved, state={**saved.state, 'rate_factor': factor})

    def _build(
        self, find: Callable[[nn.Module], Saved | None]
    ) -> tuple[Parts, Saved | None, Position]:
        """The parts, the checkpoint that they have loaded, and its position in steps of this run.
        A collective."""
        configs, engine, device = self._experiment.configs, self._engine, self._experiment.device
        with agreed(engine, device):
            parts, saved = build(configs, self._datasets, engine, device, find)
        with agreed(engine, device):
            check_skips(configs, parts.optimizer.composition)
            check_selection(configs, parts)
            check_trace(configs, parts)
            first = Position(0)
            if saved is not None:
                evaluates = bool(self._experiment.arguments.evaluate)
                first = load(parts, saved.within_epoch(), evaluates)
        return parts, saved, first

    def _train(self, find: Callable[[nn.Module], Saved | None], goes_on: bool) -> int:
        """Train to the end; returns the exit code.

        Args:
            find: Returns the checkpoint from which training continues, if any.
            goes_on: Whether the files of the run folder do.

        Raises:
            RolledBack: On all ranks, where steps were skipped.
        """
        configs, engine, folder = self._experiment.configs, self._engine, self._folder
        parts, saved, first = self._build(find)
        optimizer = parts.optimizer
        assert not isinstance(optimizer, WorkerOptimizer)  # that of a parameter server
        if is_over(parts, saved, first, configs.train.num_epochs):
            return self._end_at_once(saved, made_before(parts, first), goes_on)
        if saved is not None:
            saved = saved.within_epoch()
            say(engine, f'continues from {saved.position} in {saved.run}')
        best = best_before(saved, configs, engine, self._experiment.device)
        begins = goes_on and self._experiment.is_auto and saved is None and not folder.exists()
        resumed_at = written(saved, engine, first) if goes_on and not begins else None
        log = start_log(folder, parts, configs, resumed_at)
        checks = build_checks(configs, parts, first)
        saver = Saver(parts, configs, folder, log, self._signals, saved, first, checks, best)
        if self._rollbacks.done and saved is not None:
            saver.replace(saved, first)
        try:
            self._signals.waits = True
            train_epochs(self._experiment, parts, log, saver, first)
            log.close()
        except Preempted as preempted:
            log.close()
            return preempted.code
        except RolledBack:
            saver.settle()
            optimizer.detach()
            raise
        finally:
            self._signals.waits = False
            saver.close()
            log.release()
        closing_table(folder, configs, engine)
        return 0

    def _end_at_once(self, saved: Saved | None, made: str, goes_on: bool) -> int:
        """Say that the run is complete; returns the exit code."""
        engine, device = self._engine, self._experiment.device
        if saved is not None and goes_on:  # killed at the end of the run
            with agreed(engine, device, Stopped):
                own = Checkpoints(self._folder / 'checkpoints', engine.rank, engine.size)
                own.record_best(saved.best_epoch)
        say(engine, f'{self._source} has {made} already: there is nothing left to train')
        return 0


def is_over(parts: Parts, saved: Saved | None, first: Position, num_epochs: int) -> bool:
    """Whether nothing is left to train, nor to evaluate, after ``saved``."""
    is_evaluated = saved is not None and not saved.position.step  # at the end of an epoch
    has_all_steps = is_evaluated and parts.is_complete
    return has_all_steps or first.epochs >= parts.epochs(num_epochs)


def made_before(parts: Parts, first: Position) -> str:
    """What has been made of the run, in words."""
    if first.step:
        return f'{first.epochs * len(parts.loaders["train"]) + first.step} steps'
    return f'{first.epochs} epoch{"s" if first.epochs > 1 else ""}'


def build_checks(
    configs: Config, parts: Parts, first: Position
) -> list[Callable[[Position], None]]:
    """What is looked at after each step of training from ``first`` on."""
    optimizer = parts.optimizer
    assert not isinstance(optimizer, WorkerOptimizer)  # that of a parameter server
    checks: list[Callable[[Position], None]] = []
    if configs.agreement is not None:
        checks.append(Agreeing(parts.model, optimizer, parts.engine, configs.agreement))
    if configs.rollback.after_skips is not None:
        checks.append(SkippedSteps(optimizer, configs.rollback.after_skips, first))
    return checks


def load(parts: Parts, saved: Saved, evaluate: bool) -> Position:
    """Load a checkpoint: all of it, or the model; returns the position in steps of this run.

    Raises:
        CheckpointError: If it does not fit the configuration.
    """
    try:
        if not evaluate:
            return parts.resume(saved)
        parts.model.load_state_dict(saved.model())
    except (RuntimeError, KeyError, ValueError) as error:
        reason = textwrap.shorten(str(error), 400, placeholder=' …')
        raise CheckpointError(f'{saved.run} does not fit this configuration: {reason}') from error
    return saved.position


def written(saved: Saved | None, engine: Engine, first: Position) -> Position:
    """The position up to which the files of the run are kept: curves have the losses of 50 steps
    at a time."""
    meters = meters_of(saved, engine, first)
    if meters is None:
        return first
    losses = meters['losses']
    return Position(first.epochs, losses.get('skipped', 0) + len(losses['written']))


def train_epochs(
    experiment: Experiment, parts: Parts, log: RunLog, saver: Saver, first: Position
) -> None:
    """Train the epochs from ``first`` on; evaluate, log and save each.

    Args:
        experiment: What is trained.
        parts: What this rank trains with.
        log: Receives the measurements.
        saver: Saves checkpoints.
        first: Where training begins.

    Raises:
        Preempted: On all ranks, after a signal.
        RolledBack: On all ranks, where steps were skipped.
        Stopped: On all ranks, if one of them cannot write its files.
    """
    configs, engine, device = experiment.configs, parts.engine, parts.device
    optimizer, last = parts.optimizer, parts.epochs(configs.train.num_epochs) - 1
    assert not isinstance(optimizer, WorkerOptimizer)  # that of a parameter server
    for epoch in range(first.epochs, last + 1):
        try:
            numbers = experiment.train_epoch(parts, configs, epoch, log, saver)
        except NonFiniteGradientError as error:
            raise with_remedy(error, saver.has_saved()) from error
        saver.settle()
        numbers.update(residual_norm(parts))
        ranks = of_each_rank(parts, numbers)
        with optimizer.agreed_parameters():
            numbers.update(experiment.evaluate(parts.evaluated(), configs))
            tensors: list[tuple[str, Tensor]] = [*parts.model.named_parameters()]
            if configs.agreement is not None:
                tensors += parts.model.named_buffers()  # averaged, where ranks compute their own
            check_agreement(engine, tensors, f' after epoch {epoch}')
        saver.measured(numbers.get(configs.train.metric))
        numbers['seconds/save'] = saver.seconds()
        with agreed(engine, device, Stopped):  # a disk may be full on one machine
            log.epoch(epoch, numbers, ranks, saver.step)
        saver.end_epoch(is_last=epoch == last)
