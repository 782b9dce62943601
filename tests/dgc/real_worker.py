"""Cases for real processes: training with a composition of the table, and every collective."""

from __future__ import annotations

from dataclasses import replace

import local_methods
import torch
from dgc_helpers import parameters, train, values, wrap
from test_properties import TABLE, momenta
from torch import Tensor

import dgc
from dgc.planner import PerTensor

STEPS = 5


def place(engine: dgc.Engine) -> dict[str, int]:
    """Where a rank is."""
    return {'rank': engine.rank, 'size': engine.size, 'local_size': engine.local_size}


def composition(engine: dgc.Engine, row: str) -> list[Tensor]:
    """The parameters after a few steps, with momentum where a row has a rule for it."""
    named = parameters()
    momentum = max(momentum for momentum, _ in momenta(row))
    optimizer = wrap(named, TABLE[row].make(), engine, momentum=momentum, steps_per_epoch=3)
    train(optimizer, named, STEPS, engine.rank)
    return values(named)


def local_steps(engine: dgc.Engine, name: str) -> tuple[list[Tensor], list[Tensor]]:
    """θ_s and θ after some steps of a method of local steps."""
    return local_methods.trained(engine, name)


def collectives(engine: dgc.Engine) -> dict[str, Tensor]:
    """The result of each collective, of tensors that differ by rank."""
    rank, size = engine.rank, engine.size
    ours = torch.arange(6, dtype=torch.float32) + 10 * rank
    after, before = (rank + 1) % size, (rank - 1) % size
    results = {
        'all_reduce': engine.all_reduce(ours.clone()),
        'all_reduce half': engine.all_reduce(ours.half()),
        'all_gather': engine.all_gather(ours.to(torch.uint8)),
        'broadcast': engine.broadcast(ours.long(), root=size - 1),
        'ring': engine.send_recv(ours.to(torch.uint8), after, before),
        'ring again': engine.send_recv(ours[:5].to(torch.uint8), after, before),
    }
    one_way = engine.send_recv(ours, 1 if rank == 0 else None, 0 if rank == 1 else None)
    results['one way'] = torch.zeros(0) if one_way is None else one_way
    engine.barrier()
    return results


def pipelined(engine: dgc.Engine, row: str, pipelines: list[bool]) -> list[bytes]:
    """The parameters of ``composition`` in a bucket for each, as bytes. pipelines: by rank."""
    before, engine.pipeline = engine.pipeline, pipelines[engine.rank]
    named = parameters()
    made = replace(TABLE[row].make(), planner=PerTensor(dense_bytes=8))
    momentum = max(momentum for momentum, _ in momenta(row))
    optimizer = wrap(named, made, engine, momentum=momentum, steps_per_epoch=3)
    train(optimizer, named, STEPS, engine.rank)
    engine.pipeline = before
    return [tensor.numpy().tobytes() for tensor in values(named)]


def negotiations(engine: dgc.Engine, row: str) -> tuple[int, bool, list[list[str]]]:
    """The number of buckets, whether the last one is compressed, and the names by which Horovod
    matches the collectives of each step."""
    names: list[str] = []
    label = engine._label

    def noted(kind: str, tensor: Tensor) -> str:
        names.append(label(kind, tensor))
        return names[-1]

    engine._label = noted
    named = parameters()
    optimizer = wrap(named, TABLE[row].make(), engine)
    steps = []
    for step in range(STEPS):
        names.clear()
        train(optimizer, named, [step], engine.rank)
        steps.append([*names])
    engine._label = label
    last = optimizer.buckets[-1]
    return len(optimizer.buckets), last.density is not None, steps
