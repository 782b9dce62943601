"""Synchronous training: every rank runs the loop, and all ranks make each step together."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from dgc import Engine, engines
from dgc.handshake import gather_text, shake_hands
from utils.agree import agreed
from utils.build import aspects, threads
from utils.checks import check_synchronous
from utils.config import Config
from utils.data import build_datasets
from utils.training.experiment import Experiment
from utils.training.session import Session
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
                worker,
                settings.name,
                settings.size,
                experiment.device,
                experiment.patience,
                settings.pipeline,
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
    configs, device = experiment.configs, experiment.device
    torch.set_num_threads(threads(configs.data.num_threads_per_worker, engine.local_size))
    folder = choose_folder(experiment, engine)
    with agreed(engine, device):  # before the handshake: one machine may lack the dataset
        datasets = build_datasets(configs)
    shake_hands(engine, aspects(configs, datasets), device)
    session = Session(experiment, engine, signals, datasets, folder)
    if experiment.arguments.evaluate:
        return session.evaluate()
    return session.train()
