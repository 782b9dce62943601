"""Messages that follow one another: what they take on a link is what the virtual clock shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dgc import LocalSteps, simulate
from dgc.algorithms import ALGORITHMS
from dgc.costmodel import Network
from tools.harness.exchange_probe import ExchangeProbe

LINK = Network(alpha=1e-3, beta=1e-7)
# In an Ok-Topk, and in a tree with ranks to spare, some calls begin before others have ended.
EXACT = ['dense', 'dgc', 'spardl', 'spardl-bruck', 'hierarchical', 'power-sgd', 'gtopk-doubling']


def counted(name, workers):
    """Seconds from the counts of each rank, and those of the slowest clock, of one exchange."""

    def worker(engine):
        composition = ALGORITHMS[name].composition()
        probe = ExchangeProbe(composition, 2048, 64, engine, lambda: engine.clock)
        before, start = replace(engine.traffic), engine.clock
        probe.step()
        now = engine.traffic
        path = LINK.path(now.rounds - before.rounds, now.path - before.path)
        return path, engine.clock - start

    paths, clocks = zip(*simulate(workers, worker, LINK), strict=True)
    return paths, max(clocks)


@pytest.mark.parametrize('name', EXACT)
def test_the_path_takes_as_long_as_the_exchange(name):
    paths, clock = counted(name, 4)
    assert paths == pytest.approx([clock] * 4)


@pytest.mark.parametrize(('name', 'workers'), [('gtopk', 3), ('gtopk', 5), ('oktopk', 4)])
def test_the_path_is_never_shorter_than_the_exchange(name, workers):
    paths, clock = counted(name, workers)
    assert clock <= max(paths) < 1.25 * clock


def test_local_steps_count_rounds_alone_and_their_moments_too():
    def worker(engine, moments):
        weight = torch.nn.Parameter(torch.zeros(50))
        inner, outer = torch.optim.AdamW([weight]), torch.optim.SGD([weight], lr=1.0)
        optimizer = LocalSteps(inner, outer, engine=engine, every=3, moments=moments)
        for _ in range(7):  # two rounds
            weight.grad = torch.ones(50)
            optimizer.step()
        return optimizer.progress.rounds, optimizer.progress.path

    ring = 2 * (4 - 1) * 200 // 4  # bytes
    assert simulate(4, lambda engine: worker(engine, None)) == [(2 * 6, 2 * ring)] * 4
    moments = {'exp_avg': 6}
    assert simulate(4, lambda engine: worker(engine, moments)) == [(3 * 6, 3 * ring)] * 4
