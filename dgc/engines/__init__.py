"""Engines carry out collectives over a transport, one file each; chosen by launcher or by name."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from dgc.engines.base import Engine, EngineError, StalledError, Traffic
from dgc.engines.horovod_engine import HorovodEngine, built_with_mpi
from dgc.engines.launchers import Launcher, detect, export_for_torch
from dgc.engines.local import LocalEngine
from dgc.engines.simulated import SimulatedEngine, simulate
from dgc.engines.torch_distributed import TorchEngine, check_size, default_size
from dgc.engines.watch import Patience

log = logging.getLogger('dgc')

T = TypeVar('T')

NAMES = ('horovod', 'torch', 'local', 'simulated')

__all__ = [
    'NAMES',
    'Engine',
    'EngineError',
    'HorovodEngine',
    'Launcher',
    'LocalEngine',
    'Patience',
    'SimulatedEngine',
    'StalledError',
    'TorchEngine',
    'Traffic',
    'choose',
    'create',
    'detect',
    'run',
    'simulate',
]


def choose(launcher: Launcher) -> str:
    """Return the name of the default engine of a launcher.

    It is 'local' for one process, 'torch' under torchrun, and 'horovod' under horovodrun. Under
    other launchers it is 'horovod' where that is installed and built with MPI, which connects the
    processes that they start, else 'torch'.
    """
    if launcher.size == 1:
        return 'local'
    if launcher.name in ('torchrun', 'horovodrun'):
        return 'torch' if launcher.name == 'torchrun' else 'horovod'
    if importlib.util.find_spec('horovod') is None:
        return 'torch'
    if built_with_mpi():
        return 'horovod'
    log.info(
        'dgc: this Horovod is built without MPI, so engine torch is used under %s', launcher.name
    )
    return 'torch'


def create(
    name: str | None = None,
    device: torch.device | str = 'cpu',
    patience: Patience | None = None,
    pipeline: bool | None = None,
) -> Engine:
    """Create an engine of this process.

    Where the program has called ``init_process_group`` for several processes, as one that
    ``torch.multiprocessing.spawn`` starts does, the engine is of these. A program that makes
    several engines makes them in the same order on all ranks.

    Args:
        name: One of NAMES except 'simulated'; by default 'torch' where the default process group
            has several ranks, else the engine of the launcher.
        device: Of the tensors that it carries.
        patience: How long its calls wait for other ranks; by default 30 s until a warning names
            them, and as long as ``Patience.limit`` computes until the wait is given up.
        pipeline: Whether a bucket's message is made on a thread of its own while the bucket before
            it is sent; by default where a rank has two cores or more.

    Raises:
        EngineError: If there is no such engine, it cannot start, its world size is not the number
            of processes that the launcher started, or the default process group is larger.
    """
    launcher, in_group = detect(), default_size()
    name = name or ('torch' if in_group > 1 else choose(launcher))
    engine: Engine
    if name == 'horovod':
        check_horovod(launcher)
        engine = HorovodEngine(patience)
    elif name == 'torch':
        if not in_group:
            export_for_torch(launcher)
        engine = TorchEngine(device, patience=patience)
    elif name == 'local':
        engine = LocalEngine()
    else:
        raise unknown(name)
    engine.pipeline = pipeline
    check_size(engine)
    # Each process that the launcher started may have started more, and made the group of all.
    if engine.size != launcher.size and not launcher.size < engine.size == in_group:
        other = ''
        if name == 'horovod':
            other = ' (under Slurm srun --mpi=pmix), set configs.engine.name to torch'
        raise EngineError(
            f'engine {name} counts {engine.size} workers, {launcher.name} started '
            f'{launcher.size}: start the program with the launcher of its engine{other}, or set '
            'DGC_LAUNCHER=none to run this process alone'
        )
    return engine


def check_horovod(launcher: Launcher) -> None:
    """Raise EngineError where this Horovod cannot connect what the launcher started."""
    if (
        launcher.size > 1
        and launcher.name != 'horovodrun'
        and importlib.util.find_spec('horovod') is not None
        and not built_with_mpi()
    ):
        raise EngineError(
            f'engine horovod cannot run under {launcher.name}, since this Horovod is built without '
            'MPI: start with horovodrun --gloo, or set configs.engine.name to torch, or build '
            'Horovod again where mpicxx is on the path (tools/install_horovod.sh)'
        )


def unknown(name: str) -> EngineError:
    """Return the error for a name that is not in NAMES."""
    return EngineError(f'there is no engine {name!r}; choose one of {", ".join(NAMES)}')


def run(
    worker: Callable[[Engine], T],
    name: str | None = None,
    size: int = 1,
    device: torch.device | str = 'cpu',
    patience: Patience | None = None,
    pipeline: bool | None = None,
) -> T:
    """Run ``worker(engine)`` on this rank and return its result.

    Args:
        worker: The program of one rank.
        name: One of NAMES; by default the engine of the launcher.
        size: The world size of 'simulated', whose ranks all run in this process; the result is
            that of rank 0. Must be 1 for other engines, whose world size the launcher sets.
        device: Of the tensors that the engine carries.
        patience: As for ``create``; the simulated engine reports a deadlock at once.
        pipeline: As for ``create``; the simulated engine has none.

    Raises:
        EngineError: If the settings contradict each other or the launcher.
    """
    if name == 'simulated':
        if max(detect().size, default_size()) > 1:
            raise EngineError(
                'engine simulated runs all workers in one process: start the program without a '
                'launcher, and without init_process_group'
            )
        return simulate(size, worker)[0]
    if name is not None and name not in NAMES:
        raise unknown(name)
    if size != 1:
        raise EngineError(
            f'a size of {size} is for the engine simulated; for {name or "any other"}, '
            'set the number of workers in the launcher'
        )
    engine = create(name, device, patience, pipeline)
    result = worker(engine)
    engine.close()  # not after an error: peers may have died, and closing would wait for them
    return result
