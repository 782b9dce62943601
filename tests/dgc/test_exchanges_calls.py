"""All ranks make the same calls of the engine, whatever their data.

Horovod carries a message between two by a collective of all, and pairs collectives by their order
and type; torch.distributed receives into a tensor of the length that the receiver names. The
simulated engine requires neither, so an extra call would hang only on real machines.
"""

from __future__ import annotations

import pytest
import torch
from exchange_helpers import (
    EXCHANGES,
    KINDS,
    Case,
    bucket_for,
    cases_of,
    record_calls,
    run_rank,
    worlds,
)

import dgc


@pytest.mark.parametrize(('row', 'world_size'), worlds((2, 3, 6, 8)))
def test_all_ranks_make_the_same_calls(row, world_size):
    """Two steps of each case, so that thresholds are reused in the second. Kinds come in turns."""
    cases = cases_of(world_size, corrected=True, kinds=tuple(KINDS)[world_size % 4 :: 4])

    def worker(engine):
        log, exchange = [], EXCHANGES[row][0]()
        record_calls(engine, log)
        for case in cases:
            bucket = bucket_for(exchange, case.inputs[engine.rank], engine)
            for step in range(2):
                log.append((case.name, step))
                run_rank(exchange, case, engine, bucket=bucket)
        return log

    logs = dgc.simulate(world_size, worker)
    for log in logs[1:]:
        assert log == logs[0]


@pytest.mark.parametrize('row', ['gtopk', 'spardl 4 teams', 'oktopk', 'hierarchical oktopk'])
def test_the_calls_do_not_depend_on_the_data(row):
    """Except for the length of a gather: peers of one machine, which all send point-to-point
    messages at once, may have empty parts where another's have long ones."""
    make = EXCHANGES[row][0]

    def worker(engine):
        calls = []
        record_calls(engine, calls)
        logs = []
        for numel, density in ((64, 0.0), (64, 0.1), (64, 1.0)):
            draw = torch.Generator().manual_seed(engine.rank)
            flat = torch.randn(numel, generator=draw) * (torch.rand(64, generator=draw) < density)
            run_rank(make(), Case('', 8, [flat] * engine.size), engine)
            logs.append([(kind, dtype) for kind, dtype, _ in calls])
            calls.clear()
        return logs

    for logs in dgc.simulate(4, worker):
        assert logs[0] == logs[1] == logs[2]
