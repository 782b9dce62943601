"""One real process of test_real_processes: every composition of the table, and every collective.

    LAUNCHER python real_worker.py FOLDER

writes the results of rank r to FOLDER/r.pth.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from dgc_helpers import parameters, train, values, wrap
from test_properties import TABLE, fits, momenta
from torch import Tensor

import dgc
from dgc import engines

STEPS = 5


def compositions(engine: dgc.Engine) -> dict[str, list[Tensor]]:
    """The parameters after a few steps, with momentum where a row has a rule for it, by row."""
    results = {}
    for name, row in TABLE.items():
        if not fits(name, engine.size):
            continue
        named = parameters()
        momentum = max(momentum for momentum, _ in momenta(name))
        optimizer = wrap(named, row.make(), engine, momentum=momentum, steps_per_epoch=3)
        train(optimizer, named, STEPS, engine.rank)
        results[name] = values(named)
    return results


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


def work(engine: dgc.Engine) -> dict[str, dict]:
    """All results of one rank."""
    return {
        'compositions': compositions(engine),
        'collectives': collectives(engine),
        'world': {'rank': engine.rank, 'size': engine.size, 'local_size': engine.local_size},
    }


if __name__ == '__main__':
    torch.set_num_threads(1)
    results = engines.run(work)
    torch.save(results, Path(sys.argv[1]) / f'{results["world"]["rank"]}.pth')
