"""The simulated engine: the virtual clock of each worker."""

import pytest
import torch

from dgc import simulate
from dgc.costmodel import Network

NETWORK = Network(alpha=10.0, beta=1.0)  # seconds a message and a byte


def clocks(size, worker, network=NETWORK):
    """Every worker's, in the end."""

    def timed(engine):
        worker(engine)
        return engine.clock

    return simulate(size, timed, network)


def message(nbytes):
    return torch.zeros(nbytes, dtype=torch.uint8)


class TestClock:
    def test_a_message_takes_both_ends_until_it_has_come(self):
        def worker(engine):
            engine.send_recv(message(5), *((1, None) if engine.rank == 0 else (None, 0)))

        assert clocks(2, worker) == [15, 15]

    def test_sending_and_receiving_go_on_at_once(self):
        def worker(engine):
            other = 1 - engine.rank
            engine.send_recv(message(5 if engine.rank else 3), other, other)

        assert clocks(2, worker) == [15, 15]

    def test_whoever_hears_late_does_not_wait(self):
        def worker(engine):
            if engine.rank == 0:
                engine.send_recv(message(5), 1, None)
            else:
                engine.compute(100)
                engine.send_recv(message(5), None, 0)

        assert clocks(2, worker) == [15, 100]

    def test_messages_leave_one_after_another(self):
        def worker(engine):
            for number in range(1, engine.size):
                if engine.rank == 0:
                    engine.send_recv(message(5), number, None)
                elif engine.rank == number:
                    engine.send_recv(message(5), None, 0)

        assert clocks(4, worker) == [45, 15, 30, 45]

    def test_a_ring_is_as_fast_as_its_latest_worker_lets_it(self):
        def worker(engine):
            engine.compute(engine.rank)
            after, before = (engine.rank + 1) % engine.size, (engine.rank - 1) % engine.size
            engine.send_recv(message(5), after, before)

        assert clocks(3, worker) == [17, 16, 17]

    def test_who_says_and_hears_nothing_waits_for_nothing(self):
        assert clocks(2, lambda engine: engine.send_recv(message(5), None, None)) == [0, 0]

    @pytest.mark.parametrize(
        ('call', 'expected'),
        [
            (lambda e: e.all_gather(message(6)), NETWORK.all_gather(6, 4)),
            (lambda e: e.all_reduce(torch.zeros(2)), NETWORK.all_reduce(8, 4)),
            (lambda e: e.broadcast(message(6), 2), NETWORK.broadcast(6, 4)),
            (lambda e: e.barrier(), NETWORK.barrier(4)),
        ],
    )
    def test_collectives_begin_with_the_last_to_come_and_end_together(self, call, expected):
        def worker(engine):
            engine.compute(engine.rank)
            call(engine)
            call(engine)

        assert clocks(4, worker) == [3 + 2 * expected] * 4

    def test_a_worker_that_is_alone_takes_no_time(self):
        def worker(engine):
            for call in (engine.all_gather, engine.all_reduce, engine.broadcast):
                call(message(6))
            engine.barrier()
            engine.send_recv(message(6), 0, 0)

        assert clocks(1, worker) == [0]

    def test_without_a_network_messages_take_no_time(self):
        def worker(engine):
            engine.all_gather(message(6))
            engine.send_recv(message(6), 1 - engine.rank, 1 - engine.rank)

        assert clocks(2, worker, None) == [0, 0]


def test_a_thousand_workers_take_a_second_or_two():
    def worker(engine):
        total, gap = torch.ones(1), 1
        while gap < engine.size:
            total = total + engine.send_recv(total, engine.rank ^ gap, engine.rank ^ gap)
            gap *= 2
        return total.item(), engine.clock

    assert simulate(1024, worker, NETWORK) == [(1024, 10 * NETWORK.message(4))] * 1024
