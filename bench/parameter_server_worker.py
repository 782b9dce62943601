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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import dgc
from dgc.parameter_server import (
    Address,
    Budget,
    Observer,
    Server,
    Update,
    WorkerOptimizer,
)
from dgc.parameter_server.sockets import Service, SocketLink
from tools.harness.algorithms import asynchronous
from tools.harness.gate import wait_at
from tools.harness.spec import write_json
from tools.harness.workloads import WORKLOADS, Batch, loss, make_batches, make_model
from utils.allocator import keep_freed_memory

LR, MOMENTUM = 0.01, 0.9
WARMUP = 2  # steps on fast links, in which memory is allocated and connections are made
ENDLESS = 10**9  # updates
PATIENCE = 600.0  # seconds: a dense model takes a minute on a slow link


@dataclass(frozen=True)
class Task:
    """What a process is to do.

    mode: an asynchronous algorithm, or 'dgc'. model: of WORKLOADS.
    batch: samples per worker and step.
    ratio: density of messages. seconds: measuring time. address, port: of the server.
    answer: path of the file for the results, in whose folder the gate is.
    """

    mode: str
    model: str
    batch: int
    ratio: float
    seconds: float
    address: str
    port: int
    answer: str

    @classmethod
    def read(cls, path: Path) -> Task:
        """Read the JSON file at ``path``."""
        return cls(**json.loads(path.read_text()))

    @property
    def gate(self) -> Path:
        """The folder of the gate at which all processes wait."""
        return Path(self.answer).parent


class Counts(Observer):
    """Records when each update arrived at the server."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, Update]] = []

    def updated(self, update: Update) -> None:
        """See Observer."""
        self.arrived.append((time.monotonic(), update))


def batches(task: Task, rank: int) -> Iterator[Batch]:
    """The synthetic batches of a rank, repeated without end."""
    return itertools.cycle(make_batches(WORKLOADS[task.model], task.batch, rank))


def steps(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, source: Iterator[Batch]
) -> Iterator[None]:
    """Make one training step for each item that is taken from this iterator."""
    for batch in source:
        optimizer.zero_grad()
        loss(model(batch.inputs), batch.targets).backward()
        optimizer.step()
        yield


def serve(task: Task, engine: dgc.Engine) -> None:
    """Run the server on a thread, and count updates while the links are slow."""
    model, counts = make_model(WORKLOADS[task.model]), Counts()
    sgd = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    composition = asynchronous(task.ratio)[task.mode]()
    budget = Budget(engine.size - 1, 1000, ENDLESS)
    server = Server(
        sgd, model.named_parameters(), model.buffers(), composition, budget, '', counts, PATIENCE
    )
    service = Service(server, Address(task.address, task.port), None, PATIENCE)
    threading.Thread(target=service.run, daemon=True).start()
    engine.barrier()
    wait_at(task.gate, engine)
    begin = time.monotonic()
    time.sleep(task.seconds)
    updates = [update for when, update in list(counts.arrived) if when > begin]
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
    """Train as an asynchronous worker, until the process ends."""
    engine.barrier()
    model = make_model(WORKLOADS[task.model])
    sgd = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    link = SocketLink(Address(task.address, task.port), patience=PATIENCE)
    optimizer = WorkerOptimizer(
        sgd, model.named_parameters(), model.buffers(), asynchronous(task.ratio)[task.mode](), link
    )
    training = steps(model, optimizer, batches(task, engine.rank))
    for _ in range(WARMUP):
        next(training)
    wait_at(task.gate, engine)
    end_after(task.seconds)
    for _ in training:
        pass


def reduce(task: Task, engine: dgc.Engine) -> None:
    """Train as a worker of synchronous DGC; rank 0 writes the answer after every step."""
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
    wait_at(task.gate, engine)
    end_after(task.seconds + PATIENCE / 10)
    before, begin, done = engine.traffic.sent, time.monotonic(), 0
    while time.monotonic() - begin < task.seconds:
        next(training)
        done += 1
        if engine.rank == 0:  # all ranks make the same steps, and end when rank 0 has ended
            answer = {
                'updates': [done] * engine.size,
                'seconds': time.monotonic() - begin,
                'received': engine.size * (engine.traffic.sent - before),
                'sent': 0,
                'staleness': 0.0,
            }
            write_json(Path(task.answer), answer)


def end_after(seconds: float) -> None:
    """End this process with status 0 after some seconds, even while it sends a message."""
    timer = threading.Timer(seconds, lambda: os._exit(0))
    timer.daemon = True
    timer.start()


def main(path: str) -> None:
    """Carry out the task in the file at ``path``."""
    keep_freed_memory()
    task, engine = Task.read(Path(path)), dgc.create()
    torch.set_num_threads(1)
    if task.mode not in asynchronous():
        reduce(task, engine)
    elif engine.rank == 0:
        serve(task, engine)
    else:
        push(task, engine)
    os._exit(0)  # threads may still wait for messages that no process will send


if __name__ == '__main__':
    main(sys.argv[1])
