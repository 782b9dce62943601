"""Engines carry out collectives over a transport, one file each; chosen by launcher or by name."""

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
    """Return the name of the default engine of a launcher.

    It is 'local' for one process, 'torch' under torchrun, 'horovod' under horovodrun or where it is
    installed, else 'torch'.
    """
    if launcher.size == 1:
        return 'local'
    if launcher.name == 'torchrun':
        return 'torch'
    installed = importlib.util.find_spec('horovod') is not None
    return 'horovod' if installed or launcher.name == 'horovodrun' else 'torch'


def create(name: str | None = None, device: torch.device | str = 'cpu') -> Engine:
    """Create this process's engine.

    Args:
        name: One of NAMES except 'simulated'; by default the engine of the launcher.
        device: Of the tensors that it carries.

    Raises:
        EngineError: If there is no such engine, it cannot start, or its world size is not the
            number of processes that the launcher started.
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
    """Return the error for a name that is not in NAMES."""
    return EngineError(f'there is no engine {name!r}; choose one of {", ".join(NAMES)}')


def run(
    worker: Callable[[Engine], T],
    name: str | None = None,
    size: int = 1,
    device: torch.device | str = 'cpu',
) -> T:
    """Run ``worker(engine)`` on this rank and return its result.

    Args:
        worker: The program of one rank.
        name: One of NAMES; by default the engine of the launcher.
        size: The world size of 'simulated', whose ranks all run in this process; the result is
            that of rank 0. Must be 1 for other engines, whose world size the launcher sets.
        device: Of the tensors that the engine carries.

    Raises:
        EngineError: If the settings contradict each other or the launcher.
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
            'set the number of workers in the launcher'
        )
    engine = create(name, device)
    result = worker(engine)
    engine.close()  # not after an error: peers may have died, and closing would wait for them
    return result
