"""All workers make the same calls of the engine, whatever their data.

Horovod carries a message between two by a collective of all, and pairs collectives by their order
and type; torch.distributed receives into a tensor of the length that the receiver names. The
simulated engine does not mind either, so that a call too many would hang only on real machines.
"""

from __future__ import annotations

import pytest
import torch
from exchange_helpers import EXCHANGES, KINDS, Case, bring, cases_of, worlds

import dgc

CALLS = ('all_reduce', 'all_gather', 'send_recv', 'broadcast')


def watched(engine, log):
    """Have the engine note its calls, and see that what comes is as long as was said."""

    def watch(kind):
        call = getattr(engine, kind)

        def note(tensor, *others, **settings):
            length = None if kind == 'send_recv' else tensor.numel()
            log.append((kind, tensor.dtype, length))
            result = call(tensor, *others, **settings)
            if kind == 'send_recv' and result is not None:
                assert result.numel() == tensor.numel()
                assert result.dtype == tensor.dtype
            return result

        setattr(engine, kind, note)

    for kind in CALLS:
        watch(kind)


@pytest.mark.parametrize(('row', 'workers'), worlds((2, 3, 6, 8)))
def test_all_workers_make_the_same_calls(row, workers):
    """One exchange for all the cases, so that its thresholds are reused."""
    cases = cases_of(workers, whole=True, kinds=tuple(KINDS)[::2])

    def worker(engine):
        log, exchange = [], EXCHANGES[row][0]()
        watched(engine, log)
        for case in cases:
            log.append(case.name)
            bring(exchange, case, engine)
        return log

    logs = dgc.simulate(workers, worker)
    for log in logs[1:]:
        assert log == logs[0]


@pytest.mark.parametrize('row', ['gtopk', 'spardl 4 teams', 'oktopk', 'hierarchical oktopk'])
def test_they_do_not_depend_on_the_data_either(row):
    """But for the length of a gather: what is nothing to one machine's peers, who all make
    messages between two at once, may be much to another's."""
    make = EXCHANGES[row][0]

    def worker(engine):
        calls = []
        watched(engine, calls)
        logs = []
        for numel, density in ((64, 0.0), (64, 0.1), (64, 1.0)):
            draw = torch.Generator().manual_seed(engine.rank)
            flat = torch.randn(numel, generator=draw) * (torch.rand(64, generator=draw) < density)
            bring(make(), Case('', 8, [flat] * engine.size), engine)
            logs.append([(kind, dtype) for kind, dtype, _ in calls])
            calls.clear()
        return logs

    for logs in dgc.simulate(4, worker):
        assert logs[0] == logs[1] == logs[2]
