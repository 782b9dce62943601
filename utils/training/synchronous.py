"""Synchronous training: every rank runs the loop, and all ranks make each step together."""

from __future__ import annotations

from pathlib import Path

import torch

from dgc import Engine, NonFiniteGradientError, engines
from dgc.handshake import check_agreement, gather_text, shake_hands
from dgc.parameter_server import WorkerOptimizer
from utils.agree import agreed
from utils.build import Parts, aspects, build, threads
from utils.checkpoint import Checkpoints, restore
from utils.checks import check_synchronous
from utils.cli import Stopped
from utils.data import build_datasets
from utils.log import RunLog, start_log
from utils.progress import closing_table, say
from utils.training.experiment import Experiment, with_remedy


class Synchronous:
    """The launcher's ranks, or the workers of a simulation, each with a DistributedOptimizer."""

    def run(self, experiment: Experiment) -> None:
        """Run this process's rank, or all workers of a simulation."""
        configs = experiment.configs
        check_synchronous(configs)

        def worker(engine: Engine) -> None:
            run_rank(engine, experiment)

        settings = configs.engine
        engines.run(worker, settings.name, settings.size, experiment.device, experiment.patience)


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


def run_rank(engine: Engine, experiment: Experiment) -> None:
    """Train, or only evaluate, as one rank."""
    arguments, configs, device = experiment.arguments, experiment.configs, experiment.device
    torch.set_num_threads(threads(configs.data.num_threads_per_worker, engine.local_size))
    folder = choose_folder(experiment, engine)
    with agreed(engine, device):  # before the handshake: one machine may lack the dataset
        datasets = build_datasets(configs)
    shake_hands(engine, aspects(configs, datasets), device)
    with agreed(engine, device):
        parts = build(configs, datasets, engine, device)

    first, best = 0, None
    if arguments.evaluate or experiment.resumes:
        with agreed(engine, device):
            first, best = restore(parts, experiment.source(folder), arguments.evaluate)
    if arguments.evaluate:
        for name, value in experiment.evaluate(parts, configs).items():
            say(engine, f'[{name}] = {value:.2f}')
        return
    if first >= configs.train.num_epochs:
        epochs = f'{first} epoch{"s" if first > 1 else ""}'
        source = experiment.source(folder)
        say(engine, f'{source} has {epochs} already: there is nothing left to train')
        return

    log = start_log(folder, parts, configs, first if experiment.continues(folder) else None)
    try:
        train_epochs(experiment, parts, log, folder, first, best)
        log.close()
    finally:
        log.release()
    closing_table(folder, configs, engine)


def train_epochs(
    experiment: Experiment,
    parts: Parts,
    log: RunLog,
    folder: Path,
    first: int,
    best: float | None,
) -> None:
    """Train the epochs from ``first`` on; evaluate, log and save each.

    Args:
        experiment: What is trained.
        parts: What this rank trains with.
        log: Receives the measurements.
        folder: The run folder.
        first: The first epoch.
        best: The best metric of earlier epochs.

    Raises:
        Stopped: On all ranks, if one of them cannot write its files.
    """
    configs, engine, device = experiment.configs, parts.engine, parts.device
    optimizer = parts.optimizer
    assert not isinstance(optimizer, WorkerOptimizer)  # that of a parameter server
    checkpoints = Checkpoints(folder / 'checkpoints', engine.rank, engine.size)
    for epoch in range(first, configs.train.num_epochs):
        try:
            numbers = experiment.train_epoch(parts, configs, epoch, log)
        except NonFiniteGradientError as error:
            raise with_remedy(error, bool(checkpoints.epochs())) from error
        with optimizer.agreed_parameters():
            numbers.update(experiment.evaluate(parts, configs))
            check_agreement(engine, parts.model.parameters())
        metric = numbers.get(configs.train.metric)
        improved = metric is None or best is None or metric > best  # without a metric: the last one
        best = metric if improved else best
        state = {**parts.state_dict(), 'epoch': epoch, 'best': best}
        with agreed(engine, device, Stopped):  # a disk may be full on one machine
            log.epoch(epoch, numbers)
            checkpoints.save(epoch, state)
        # An older epoch is removed only once every rank has saved this one.
        with agreed(engine, device, Stopped):
            checkpoints.finish(epoch, improved)
