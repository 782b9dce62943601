"""Who carries the bytes: one engine a file, chosen by the launcher or by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TypeVar

import torch

from dgc.engines.base import Engine, EngineError, Traffic
from dgc.engines.horovod_engine import HorovodEngine
from dgc.engines.launchers import Launcher, detect, export_for_torch
from dgc.engines.local import LocalEngine
from dgc.engines.simulated import SimulatedEngine, simulate
from dgc.engines.torch_distributed import TorchEngine

T = TypeVar('T')

NAMES = ('horovod', 'torch', 'local', 'simulated')

__all__ = [
    'NAMES',
    'Engine',
    'EngineError',
    'HorovodEngine',
    'Launcher',
    'LocalEngine',
    'SimulatedEngine',
    'TorchEngine',
    'Traffic',
    'choose',
    'create',
    'detect',
    'run',
    'simulate',
]


def choose(launcher: Launcher) -> str:
    """The engine that fits a launcher: local for one process, torch under torchrun, else horovod
    where it is installed."""
    if launcher.size == 1:
        return 'local'
    if launcher.name == 'torchrun':
        return 'torch'
    installed = importlib.util.find_spec('horovod') is not None
    return 'horovod' if installed or launcher.name == 'horovodrun' else 'torch'


def create(name: str | None = None, device: torch.device | str = 'cpu') -> Engine:
    """The engine called ``name``, or the one that fits the launcher.

    Raises EngineError where it cannot start, or counts other workers than the launcher started.
    """
    launcher = detect()
    name = name or choose(launcher)
    engine: Engine
    if name == 'horovod':
        engine = HorovodEngine()
    elif name == 'torch':
        export_for_torch(launcher)
        engine = TorchEngine(device)
    elif name == 'local':
        engine = LocalEngine()
    else:
        raise unknown(name)
    if engine.size != launcher.size:
        raise EngineError(
            f'engine {name} counts {engine.size} workers, {launcher.name} started '
            f'{launcher.size}: start the program with the launcher of its engine'
        )
    return engine


def unknown(name: str) -> EngineError:
    """There is no engine of this name."""
    return EngineError(f'there is no engine {name!r}; choose one of {", ".join(NAMES)}')


def run(
    worker: Callable[[Engine], T],
    name: str | None = None,
    size: int = 1,
    device: torch.device | str = 'cpu',
) -> T:
    """Run ``worker(engine)`` as this process's worker; returns its result.

    With 'simulated', all ``size`` workers run in this process, and the result is rank 0's. Of the
    other engines, the launcher says how many workers there are.
    """
    if name == 'simulated':
        if detect().size > 1:
            raise EngineError(
                'engine simulated runs all workers in one process: start the program without a '
                'launcher'
            )
        return simulate(size, worker)[0]
    if name is not None and name not in NAMES:
        raise unknown(name)
    if size != 1:
        raise EngineError(
            f'a size of {size} is for the engine simulated; for {name or "any other"}, '
            'tell the launcher how many workers to start'
        )
    engine = create(name, device)
    result = worker(engine)
    engine.close()  # not after an error: the others may be gone, and closing waits for them
    return result
