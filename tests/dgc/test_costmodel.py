"""Closed forms of times, against what messages between two take when they go the way described."""

import pytest
import torch

from dgc.costmodel import Network
from dgc.engines import simulate

SLOW = Network.of(1e9, 50e-6)
SIZES = [1, 2, 3, 5, 8, 13, 16]
BYTES = 480


def test_a_network_of_a_rate_and_a_latency():
    assert Network.of(1e9, 50e-6) == Network(50e-6, 8e-9)
    assert Network.of(8e6, 1e-3).message(1000) == pytest.approx(2e-3)


def test_numbers_worked_out_by_hand():
    network = Network(alpha=10.0, beta=1.0)
    assert network.all_gather(6, 4) == 3 * (10 + 6)
    assert network.all_reduce(8, 4) == 6 * (10 + 2)
    assert network.broadcast(6, 5) == 3 * (10 + 6)
    assert network.barrier(8) == 30


def test_a_worker_that_is_alone_waits_for_nothing():
    assert SLOW.all_gather(BYTES, 1) == SLOW.all_reduce(BYTES, 1) == 0
    assert SLOW.broadcast(BYTES, 1) == SLOW.barrier(1) == 0


def elapsed(size, worker):
    return max(simulate(size, lambda engine: (worker(engine), engine.clock)[1], SLOW))


def ring(rounds, nbytes):
    """Everybody passes on to the next what came from the one before."""

    def worker(engine):
        after, before = (engine.rank + 1) % engine.size, (engine.rank - 1) % engine.size
        for _ in range(rounds):
            engine.send_recv(torch.zeros(nbytes, dtype=torch.uint8), after, before)

    return worker


def tree(nbytes):
    """Down a binomial tree, whose root is worker 0."""

    def worker(engine):
        gap = 1
        while gap < engine.size:
            sends = engine.rank < gap and engine.rank + gap < engine.size
            hears = gap <= engine.rank < 2 * gap
            engine.send_recv(
                torch.zeros(nbytes, dtype=torch.uint8),
                engine.rank + gap if sends else None,
                engine.rank - gap if hears else None,
            )
            gap *= 2

    return worker


def dissemination(engine):
    """A barrier of empty messages."""
    gap = 1
    while gap < engine.size:
        there, here = (engine.rank + gap) % engine.size, (engine.rank - gap) % engine.size
        engine.send_recv(torch.zeros(0), there, here)
        gap *= 2


@pytest.mark.parametrize('size', SIZES)
class TestMessagesTakeAsLong:
    def test_all_gather(self, size):
        assert elapsed(size, ring(size - 1, BYTES)) == pytest.approx(SLOW.all_gather(BYTES, size))

    def test_all_reduce(self, size):
        part = 40
        rounds = 2 * (size - 1)
        assert elapsed(size, ring(rounds, part)) == pytest.approx(
            SLOW.all_reduce(part * size, size)
        )

    def test_broadcast(self, size):
        assert elapsed(size, tree(BYTES)) == pytest.approx(SLOW.broadcast(BYTES, size))

    def test_barrier(self, size):
        assert elapsed(size, dissemination) == pytest.approx(SLOW.barrier(size))
