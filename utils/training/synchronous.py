"""Synchronous training: every rank runs the loop, and all ranks make each step together."""

from __future__ import annotations

import textwrap
from functools import partial
from pathlib import Path

import torch
from torch import nn

from dgc import Engine, NonFiniteGradientError, engines
from dgc.handshake import check_agreement, gather_text, shake_hands
from dgc.parameter_server import WorkerOptimizer
from utils.agree import agreed
from utils.build import Parts, aspects, build, threads
from utils.checkpoint import CheckpointError, Checkpoints, Position
from utils.checks import check_synchronous
from utils.cli import Stopped
from utils.config import Config
from utils.data import build_datasets
from utils.log import RunLog, start_log
from utils.progress import closing_table, say
from utils.ranks import of_each_rank, residual_norm
from utils.search import Saved, Search
from utils.training.experiment import Experiment, with_remedy
from utils.training.saving import Preempted, Saver, meters_of
from utils.training.stopping import StopSignals


class Synchronous:
    """The launcher's ranks, or the workers of a simulation, each with a DistributedOptimizer."""

    def workers(self, configs: Config, processes: int) -> int:
        """Return the number of workers of a launcher's processes, or of a simulation."""
        engine = configs.engine
        return int(engine.size) if engine.name == 'simulated' else processes

    def run(self, experiment: Experiment) -> int:
        """Run this process's rank, or all workers of a simulation; returns the exit code."""
        configs = experiment.configs
        check_synchronous(configs)
        settings = configs.engine
        with StopSignals(engines.detect().rank) as signals:
            worker = partial(run_rank, experiment=experiment, signals=signals)
            return engines.run(
                worker, settings.name, settings.size, experiment.device, experiment.patience
            )


def choose_folder(experiment: Experiment, engine: Engine) -> Path:
    """The run folder: a new run's, or the one that is continued or evaluated. A collective.

    Rank 0 chooses, since the ranks' disks may hold different runs. Raises Refused.
    """
    chosen = ''
    with agreed(engine, experiment.device):
        if engine.rank == 0:
            continues = experiment.resumes or experiment.arguments.evaluate
            chosen = str((experiment.earlier if continues else experiment.folder)(engine.size))
    return Path(gather_text(engine, chosen, experiment.device, limit=4096)[0])


def run_rank(engine: Engine, experiment: Experiment, signals: StopSignals) -> int:
    """Train, or only evaluate, as one rank; returns the exit code."""
    arguments, configs, device = experiment.arguments, experiment.configs, experiment.device
    torch.set_num_threads(threads(configs.data.num_threads_per_worker, engine.local_size))
    folder = choose_folder(experiment, engine)
    with agreed(engine, device):  # before the handshake: one machine may lack the dataset
        datasets = build_datasets(configs)
    shake_hands(engine, aspects(configs, datasets), device)
    source = experiment.source(folder)

    def find(model: nn.Module) -> Saved | None:
        if not (arguments.evaluate or experiment.resumes):
            return None
        search = Search(engine, device, source, arguments.evaluate)
        return search.last(model, anew=experiment.is_auto and not arguments.evaluate)

    with agreed(engine, device):
        parts, saved = build(configs, datasets, engine, device, find)
    first = Position(0)
    if saved is not None:
        with agreed(engine, device):
            first = load(parts, saved, arguments.evaluate)
    if arguments.evaluate:
        assert saved is not None
        say(engine, f'evaluates {saved.about}')
        for name, value in experiment.evaluate(parts, configs).items():
            say(engine, f'[{name}] = {value:.2f}')
        return 0
    if first.epochs >= configs.train.num_epochs:
        epochs = f'{first.epochs} epoch{"s" if first.epochs > 1 else ""}'
        if saved is not None and experiment.continues(folder):  # killed at the end of the run
            with agreed(engine, device, Stopped):
                own = Checkpoints(folder / 'checkpoints', engine.rank, engine.size)
                own.record_best(saved.best_epoch)
        say(engine, f'{source} has {epochs} already: there is nothing left to train')
        return 0

    if saved is not None:
        say(engine, f'continues from {saved.position} in {saved.run}')
    log = start_log(folder, parts, configs, continued(experiment, engine, folder, saved, first))
    saver = Saver(parts, configs, folder, log, signals, saved, first)
    try:
        signals.waits = True
        train_epochs(experiment, parts, log, saver, first)
        log.close()
    except Preempted as preempted:
        log.close()
        return preempted.code
    finally:
        signals.waits = False
        saver.close()
        log.release()
    closing_table(folder, configs, engine)
    return 0


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


def continued(
    experiment: Experiment, engine: Engine, folder: Path, saved: Saved | None, first: Position
) -> Position | None:
    """The position from which on the files of the run go on; None for files of a new run."""
    if not experiment.continues(folder):
        return None
    if experiment.is_auto and saved is None and not folder.exists():
        return None
    meters = meters_of(saved, engine, first)
    written = first.step if meters is None else len(meters['losses']['written'])
    return Position(first.epochs, written)


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
        Stopped: On all ranks, if one of them cannot write its files.
    """
    configs, engine, device = experiment.configs, parts.engine, parts.device
    optimizer, last = parts.optimizer, configs.train.num_epochs - 1
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
            numbers.update(experiment.evaluate(parts, configs))
            check_agreement(engine, parts.model.parameters())
        saver.measured(numbers.get(configs.train.metric))
        numbers['seconds/save'] = saver.seconds()
        with agreed(engine, device, Stopped):  # a disk may be full on one machine
            log.epoch(epoch, numbers, ranks)
        saver.end_epoch(is_last=epoch == last)
