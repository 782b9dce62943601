"""One process of `python -m bench.parameter_server`: the server, or a worker of either kind.

LAUNCHER python -m bench.parameter_server_worker SPEC.json
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import dgc
from bench.gate import wait_at
from bench.spec import write_json
from bench.workloads import WORKLOADS, Batch, loss, make_batches, make_model
from dgc.memory import MomentumCorrection
from dgc.parameter_server import (
    Address,
    Asynchronous,
    Budget,
    Observer,
    Server,
    Update,
    WorkerOptimizer,
    dual_way,
)
from dgc.parameter_server.sockets import Service, SocketLink
from utils.allocator import keep_freed_memory

LR, MOMENTUM = 0.01, 0.9
WARMUP = 2  # steps, on fast links: to allocate, connect and adapt
ENDLESS = 10**9  # updates
PATIENCE = 600.0  # seconds: a dense model takes a minute on a slow link


@dataclass(frozen=True)
class Task:
    """mode: of MODES, or 'dgc'. ratio: compress ratio. seconds: to measure. address: the server's.

    answer: file for what was counted. gate: folder of the gate to wait at.
    """

    mode: str
    model: str
    batch: int
    ratio: float
    seconds: float
    address: str
    port: int
    answer: str
    gate: str

    @classmethod
    def read(cls, path: Path) -> Task:
        """From JSON."""
        return cls(**json.loads(path.read_text()))


MODES: dict[str, Callable[[float], Asynchronous]] = {
    'dgs': lambda ratio: dual_way(ratio, indices='packed'),
    'asgd': lambda _: dual_way(1.0, memory=MomentumCorrection()),
}


class Counts(Observer):
    """When each update came, and whose it was."""

    def __init__(self) -> None:
        self.came: list[tuple[float, Update]] = []

    def updated(self, update: Update) -> None:
        """See Observer."""
        self.came.append((time.monotonic(), update))


def batches(task: Task, rank: int) -> Iterator[Batch]:
    """Synthetic ones, for ever."""
    return itertools.cycle(make_batches(WORKLOADS[task.model], task.batch, rank))


def steps(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, source: Iterator[Batch]
) -> Iterator[None]:
    """A training step each time that it is asked for the next."""
    for batch in source:
        optimizer.zero_grad()
        loss(model(batch.inputs), batch.targets).backward()
        optimizer.step()
        yield


def serve(task: Task, engine: dgc.Engine) -> None:
    """The server, on a thread, counted while the links are slow."""
    model, counts = make_model(WORKLOADS[task.model]), Counts()
    sgd = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    composition = MODES[task.mode](task.ratio)
    budget = Budget(engine.size - 1, 1000, ENDLESS)
    server = Server(
        sgd, model.named_parameters(), model.buffers(), composition, budget, '', counts, PATIENCE
    )
    service = Service(server, Address(task.address, task.port), None, PATIENCE)
    threading.Thread(target=service.run, daemon=True).start()
    engine.barrier()
    wait_at(Path(task.gate), engine)
    begin = time.monotonic()
    time.sleep(task.seconds)
    updates = [update for when, update in list(counts.came) if when > begin]
    workers = [
        sum(update.slot == slot for update in updates) for slot in range(budget.worker_slots)
    ]
    write_json(
        Path(task.answer),
        {
            'updates': sorted(workers, reverse=True),
            'seconds': task.seconds,
            'received': sum(update.received for update in updates),
            'sent': sum(update.sent for update in updates),
            'staleness': sum(update.staleness for update in updates) / max(len(updates), 1),
        },
    )


def push(task: Task, engine: dgc.Engine) -> None:
    """An asynchronous worker."""
    engine.barrier()
    model = make_model(WORKLOADS[task.model])
    sgd = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    link = SocketLink(Address(task.address, task.port), patience=PATIENCE)
    optimizer = WorkerOptimizer(
        sgd, model.named_parameters(), model.buffers(), MODES[task.mode](task.ratio), link
    )
    training = steps(model, optimizer, batches(task, engine.rank))
    for _ in range(WARMUP):
        next(training)
    wait_at(Path(task.gate), engine)
    end_after(task.seconds)
    for _ in training:
        pass


def reduce(task: Task, engine: dgc.Engine) -> None:
    """A worker of synchronous DGC."""
    model = make_model(WORKLOADS[task.model])
    optimizer = dgc.DistributedOptimizer(
        dgc.DGCSGD(model.parameters(), LR, MOMENTUM),
        model.named_parameters(),
        dgc.deep_gradient_compression(task.ratio, indices='packed'),
        engine,
    )
    training = steps(model, optimizer, batches(task, engine.rank))
    for _ in range(WARMUP):
        next(training)
    wait_at(Path(task.gate), engine)
    end_after(task.seconds + PATIENCE / 10)
    before, begin, done = engine.traffic.sent, time.monotonic(), 0
    while time.monotonic() - begin < task.seconds:
        next(training)
        done += 1
        if engine.rank == 0:  # all make the same steps, and stop with rank 0, which is soon gone
            answer = {
                'updates': [done] * engine.size,
                'seconds': time.monotonic() - begin,
                'received': engine.size * (engine.traffic.sent - before),
                'sent': 0,
                'staleness': 0.0,
            }
            write_json(Path(task.answer), answer)


def end_after(seconds: float) -> None:
    """End this process with 0 then, also in the middle of a message."""
    timer = threading.Timer(seconds, lambda: os._exit(0))
    timer.daemon = True
    timer.start()


def main(path: str) -> None:
    """Carry out the task at ``path``."""
    keep_freed_memory()
    task, engine = Task.read(Path(path)), dgc.create()
    torch.set_num_threads(1)
    if task.mode not in MODES:
        reduce(task, engine)
    elif engine.rank == 0:
        serve(task, engine)
    else:
        push(task, engine)
    os._exit(0)  # others may be in the middle of what will not end


if __name__ == '__main__':
    main(sys.argv[1])
