"""Cases for real processes of which one stops."""

from __future__ import annotations

import logging
import os
import signal

import torch
from dgc_helpers import exact, parameters, train, wrap

from dgc import Engine
from dgc.engines import HorovodEngine, Patience, TorchEngine
from dgc.handshake import gather_text

STOPPED = 1  # the rank that does


class Resume(logging.Handler):
    """Keeps what is logged, and lets a stopped process go on as soon as its rank is named."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self.process = process
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        os.kill(self.process, signal.SIGCONT)


def pause(world: Engine, warning_seconds: float) -> tuple[list[str], bool]:
    """Stop one rank (SIGSTOP) before its third step, until a line names it.

    Returns:
        What this rank has logged, and whether all parameters are finite after five steps.
    """
    patience = Patience(warning_seconds, 100.0)
    engine = TorchEngine(patience=patience) if world.name == 'torch' else HorovodEngine(patience)
    named = parameters()
    optimizer = wrap(named, exact(), engine)
    processes = gather_text(engine, str(os.getpid()), 'cpu', limit=16)
    handler = Resume(int(processes[STOPPED]))
    log = logging.getLogger('dgc')
    log.addHandler(handler)
    train(optimizer, named, range(2), engine.rank)
    if engine.rank == STOPPED:
        os.kill(os.getpid(), signal.SIGSTOP)
    train(optimizer, named, range(2, 5), engine.rank)
    log.removeHandler(handler)
    assert engine._watch is not None
    engine._watch.stop()
    Engine.close(engine)  # its thread alone: the world goes on
    return handler.lines, all(bool(torch.isfinite(p).all()) for _, p in named)
