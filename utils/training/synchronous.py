"""Synchronous training: every rank runs the loop, and all ranks make each step together."""

from __future__ import annotations

from pathlib import Path

import torch

from dgc import Engine, engines
from dgc.handshake import check_agreement, gather_text, shake_hands
from dgc.parameter_server import WorkerOptimizer
from utils.agree import agreed
from utils.build import aspects, build, threads
from utils.checkpoint import Checkpoints, restore
from utils.checks import check_synchronous
from utils.log import start_log
from utils.progress import closing_table, say
from utils.training.experiment import Experiment


class Synchronous:
    """The launcher's ranks, or the workers of a simulation, each with a DistributedOptimizer."""

    def run(self, experiment: Experiment) -> None:
        """Run this process's rank, or all workers of a simulation."""
        configs = experiment.configs
        check_synchronous(configs)

        def worker(engine: Engine) -> None:
            run_rank(engine, experiment)

        engines.run(worker, configs.engine.name, configs.engine.size, experiment.device)


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
        datasets = configs.dataset.build()
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

    optimizer = parts.optimizer
    assert not isinstance(optimizer, WorkerOptimizer)  # that of a parameter server
    log = start_log(folder, parts, configs, first if experiment.continues(folder) else None)
    checkpoints = Checkpoints(folder / 'checkpoints', engine.rank, engine.size)
    for epoch in range(first, configs.train.num_epochs):
        numbers = experiment.train_epoch(parts, configs, epoch, log)
        with optimizer.agreed_parameters():
            numbers.update(experiment.evaluate(parts, configs))
            check_agreement(engine, parts.model.parameters())
        metric = numbers.get(configs.train.metric)
        improved = metric is None or best is None or metric > best  # without a metric: the last one
        best = metric if improved else best
        log.epoch(epoch, numbers)
        checkpoints.save(epoch, {**parts.state_dict(), 'epoch': epoch, 'best': best})
        engine.barrier()  # an older epoch is removed only once every rank has saved this one
        checkpoints.finish(epoch, improved)
    log.close()
    closing_table(folder, configs, engine)
