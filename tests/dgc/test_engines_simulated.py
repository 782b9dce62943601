"""The simulated engine: its collectives, its counters, and that it never hangs."""

import random
import signal
import threading

import numpy as np
import pytest
import torch

from dgc import EngineError, simulate
from dgc.engines import LocalEngine, run
from dgc.engines.simulated import RandomState, known_memory

SIZES = [1, 2, 3, 5, 8]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8]


class TestCollectives:
    @pytest.mark.parametrize('size', SIZES)
    def test_ranks_are_numbered_on_machines_of_their_own(self, size):
        places = simulate(size, lambda e: (e.rank, e.size, e.local_rank, e.local_size))
        assert places == [(rank, size, 0, 1) for rank in range(size)]

    @pytest.mark.parametrize('dtype', DTYPES)
    def test_all_reduce_sums_in_place(self, dtype):
        def worker(engine):
            ours = torch.tensor([[engine.rank, 1]], dtype=dtype)
            assert engine.all_reduce(ours) is ours
            return ours.tolist()

        assert simulate(4, worker) == [[[6, 4]]] * 4

    @pytest.mark.parametrize('dtype', DTYPES)
    def test_all_gather_has_a_row_for_each_rank(self, dtype):
        def worker(engine):
            return engine.all_gather(torch.tensor([engine.rank, 7], dtype=dtype))

        for gathered in simulate(3, worker):
            assert gathered.dtype == dtype
            assert gathered.tolist() == [[0, 7], [1, 7], [2, 7]]

    @pytest.mark.parametrize('root', [0, 2])
    def test_broadcast_overwrites_everybodys_with_the_roots(self, root):
        worker = lambda e: e.broadcast(torch.tensor(float(e.rank)), root).item()  # noqa: E731
        assert simulate(3, worker) == [root] * 3

    def test_send_recv_goes_round_a_ring(self):
        def worker(engine):
            after, before = (engine.rank + 1) % engine.size, (engine.rank - 1) % engine.size
            return engine.send_recv(torch.tensor([engine.rank]), after, before).item()

        assert simulate(4, worker) == [3, 0, 1, 2]

    def test_send_recv_may_go_one_way_and_keeps_the_order(self):
        def worker(engine):
            received = []
            for number in range(3):
                source, destination = (None, 1) if engine.rank == 0 else (0, None)
                received.append(engine.send_recv(torch.tensor([number]), destination, source))
            return [None if tensor is None else tensor.item() for tensor in received]

        assert simulate(2, worker) == [[None] * 3, [0, 1, 2]]

    def test_what_was_sent_may_be_overwritten_at_once(self):
        def worker(engine):
            ours = torch.tensor([engine.rank])
            if engine.rank == 0:
                engine.send_recv(ours, 1, None)
                ours.fill_(9)
                return None
            return engine.send_recv(ours, None, 0).item()

        assert simulate(2, worker) == [None, 0]

    def test_what_was_gathered_is_everybodys_own(self):
        def worker(engine):
            ours = torch.tensor([engine.rank])
            gathered = engine.all_gather(ours)
            ours.fill_(9)
            gathered[engine.rank] = 7
            return gathered.flatten().tolist()

        assert simulate(3, worker) == [[7, 1, 2], [0, 7, 2], [0, 1, 7]]

    @pytest.mark.parametrize('call', ['all_reduce', 'broadcast'])
    def test_what_came_may_be_overwritten_before_the_others_look(self, call):
        def worker(engine):
            ours = getattr(engine, call)(torch.tensor([engine.rank + 1]))
            was = ours.item()
            ours.fill_(9)
            return was

        assert len(set(simulate(4, worker))) == 1

    def test_nobody_passes_a_barrier_alone(self):
        events = []

        def worker(engine):
            events.append('before')
            engine.barrier()
            events.append('after')

        simulate(3, worker)
        assert events == ['before'] * 3 + ['after'] * 3


class TestDeterminism:
    def test_two_runs_are_equal_down_to_the_order_of_events(self):
        def a_run():
            events = []

            def worker(engine):
                for _ in range(5):
                    total = engine.all_reduce(torch.randn(3) + engine.rank)
                    events.append((engine.rank, total.tolist(), random.random()))

            torch.manual_seed(1)
            random.seed(1)
            simulate(4, worker)
            return events

        assert a_run() == a_run()

    def test_only_one_worker_runs_at_a_time(self):
        running, seen = [0], []

        def worker(engine):
            for _ in range(3):
                running[0] += 1
                torch.ones(1000).sum()  # long enough for Python to change threads, were they free
                seen.append(running[0])
                running[0] -= 1
                engine.barrier()

        simulate(6, worker)
        assert seen == [1] * 18

    @pytest.mark.parametrize('size', SIZES)
    def test_random_numbers_do_not_depend_on_how_many_others_there_are(self, size):
        def worker(engine):
            drawn = []
            for _ in range(3):
                drawn += [torch.rand(1).item(), float(np.random.rand()), random.random()]
                engine.barrier()
                if engine.rank == 1:
                    torch.rand(5), np.random.rand(5), random.random()
            return drawn

        def draws(workers):
            torch.manual_seed(3)
            np.random.seed(3)
            random.seed(3)
            return simulate(workers, worker)[0]

        assert draws(size) == draws(1)

    def test_seeds_belong_to_their_worker(self):
        def worker(engine):
            torch.manual_seed(engine.rank)
            engine.barrier()
            return torch.rand(1).item()

        expected = [
            torch.rand(1, generator=torch.Generator().manual_seed(r)).item() for r in (0, 1)
        ]
        assert simulate(2, worker) == expected

    def test_generators_are_kept_apart_whoever_draws_and_whoever_does_not(self):
        """NumPy draws normal numbers by twos, and keeps the second."""

        def worker(engine):
            random.seed(engine.rank)
            np.random.seed(engine.rank)
            torch.manual_seed(engine.rank)
            drawn = []
            for step in range(6):
                if (step + engine.rank) % 3:
                    drawn += [random.random(), np.random.randn(), torch.randn(1).item()]
                engine.barrier()
            return drawn

        def alone(rank):
            engine = LocalEngine()
            engine.rank = rank
            return worker(engine)

        assert simulate(5, worker) == [alone(rank) for rank in range(5)]

    @pytest.mark.parametrize('draw', [np.random.rand, np.random.randn, random.random, torch.rand])
    def test_a_draw_of_any_generator_is_noticed(self, draw):
        """NumPy's are read where it keeps them, but for the second of two normal numbers."""
        for seed in range(3):
            np.random.seed(seed)
            state = RandomState()
            assert state.is_current()
            for _ in range(5):
                draw(1) if draw is not random.random else draw()
                assert not state.is_current()
                state = RandomState()
                assert state.is_current()

    def test_numpys_generator_is_read_as_it_is_laid_out(self):
        np.random.seed(3)
        np.random.rand(5)
        _, numbers, position, has_second, _ = np.random.get_state()
        laid_out = numbers.tobytes() + np.int32(position).tobytes()
        assert known_memory(np.random.get_state()) == laid_out
        assert not has_second
        np.random.randn()
        assert known_memory(np.random.get_state()) == b''
        assert known_memory(np.random.MT19937(3).state) == b''

    def test_workers_have_the_callers_number_of_threads(self):
        assert simulate(2, lambda engine: torch.get_num_threads()) == [torch.get_num_threads()] * 2


class TestTraffic:
    @pytest.mark.parametrize('size', SIZES)
    def test_counters_are_the_closed_forms(self, size):
        def worker(engine):
            counts = []

            def count(call, *arguments):
                before = engine.traffic.sent, engine.traffic.received, engine.traffic.messages
                call(*arguments)
                after = engine.traffic.sent, engine.traffic.received, engine.traffic.messages
                counts.append(tuple(b - a for a, b in zip(before, after, strict=True)))

            count(engine.all_reduce, torch.zeros(120))
            count(engine.all_gather, torch.zeros(10, dtype=torch.uint8))
            count(engine.barrier)
            count(engine.send_recv, torch.zeros(6), engine.rank, engine.rank)
            count(engine.send_recv, torch.zeros(6), None, None)
            count(engine.broadcast, torch.zeros(2))
            return counts

        others = size - 1
        ring = round(2 * others / size * 480)
        for rank, counts in enumerate(simulate(size, worker)):
            copies = down_a_tree(size)[rank]
            assert counts == [
                (ring, ring, 2 * others),
                (others * 10, others * 10, others),
                (0, 0, 0),
                (24, 24, 1),
                (0, 0, 0),
                (copies * 8, 8 if rank else 0, copies),
            ]

    @pytest.mark.parametrize('size', SIZES)
    def test_a_broadcast_is_counted_along_its_tree_whoever_is_the_root(self, size):
        def worker(engine):
            engine.broadcast(torch.zeros(3), root=size - 1)
            return engine.traffic.messages, engine.traffic.sent, engine.traffic.received

        messages, sent, received = zip(*simulate(size, worker), strict=True)
        assert messages == (*down_a_tree(size)[1:], down_a_tree(size)[0])
        assert sum(sent) == sum(received) == 12 * (size - 1)

    def test_time_inside_the_engine_is_counted(self):
        def worker(engine):
            engine.barrier()
            return engine.traffic.seconds

        assert all(0 < seconds < 60 for seconds in simulate(2, worker))


def down_a_tree(size):
    """How many copies each sends of what worker 0 has: each round, all who have it pass it on."""
    sent, holders = [0] * size, [0]
    while len(holders) < size:
        for holder in holders[: size - len(holders)]:
            sent[holder] += 1
            holders = [*holders, len(holders)]
    return sent


@pytest.mark.timeout(60)
class TestItNeverHangs:
    def test_the_first_error_ends_all_workers_and_is_the_one_that_is_raised(self):
        reached = []

        def worker(engine):
            for step in range(5):
                if engine.rank == 2 and step == 3:
                    raise ZeroDivisionError('rank 2 at step 3')
                engine.barrier()
                reached.append((engine.rank, step))

        with pytest.raises(ZeroDivisionError, match='rank 2 at step 3'):
            simulate(4, worker)
        assert max(step for _, step in reached) == 2

    def test_an_error_before_anybody_waits_ends_all_workers(self):
        def worker(engine):
            if engine.rank == 0:
                raise KeyError('early')
            engine.barrier()

        with pytest.raises(KeyError, match='early'):
            simulate(3, worker)

    @pytest.mark.parametrize('size', [1, 3])
    def test_a_message_that_is_never_sent_is_a_deadlock(self, size):
        def worker(engine):
            engine.send_recv(torch.zeros(1), None, (engine.rank + 1) % size)

        with pytest.raises(EngineError, match=r'deadlock: ranks \[0'):
            simulate(size, worker)

    def test_a_worker_that_leaves_the_others_waiting_is_a_deadlock(self):
        """horovod#507: unequal numbers of steps."""

        def worker(engine):
            for _ in range(6 if engine.rank == 0 else 5):
                engine.barrier()

        with pytest.raises(EngineError, match=r'deadlock: ranks \[0\]'):
            simulate(2, worker)

    @pytest.mark.parametrize(
        ('call', 'found'),
        [
            (lambda e: e.all_reduce(torch.zeros(3)), 'all_reduce of torch.float32'),
            (lambda e: e.all_gather(torch.zeros(4)), r'all_gather of torch.float32 \[4\]'),
            (lambda e: e.all_gather(torch.zeros(3).half()), 'all_gather of torch.float16'),
            (lambda e: e.barrier(), 'barrier'),
        ],
    )
    def test_collectives_that_do_not_match_are_named(self, call, found):
        def worker(engine):
            if engine.rank == 1:
                call(engine)
            else:
                engine.all_gather(torch.zeros(3))

        with pytest.raises(EngineError, match=f'{found}|where rank . calls {found}'):
            simulate(3, worker)

    @pytest.mark.parametrize('size', [0, -1])
    def test_no_workers_are_refused(self, size):
        with pytest.raises(EngineError, match='a size of at least 1'):
            simulate(size, lambda engine: None)


def test_run_gives_the_result_of_rank_0():
    assert run(lambda engine: (engine.rank, engine.size), 'simulated', 3) == (0, 3)


class TestLocalEngine:
    def test_every_sum_is_its_own_part(self):
        engine, ours = LocalEngine(), torch.arange(3.0)
        assert engine.all_reduce(ours.clone()).tolist() == [0, 1, 2]
        assert engine.all_gather(ours).tolist() == [[0, 1, 2]]
        assert engine.broadcast(ours.clone()).tolist() == [0, 1, 2]
        assert engine.send_recv(ours, 0, 0).tolist() == [0, 1, 2]
        assert engine.send_recv(ours, None, None) is None
        engine.barrier()
        assert engine.traffic.sent == engine.traffic.received == 24 / 2

    @pytest.mark.parametrize(('destination', 'source'), [(1, 0), (0, 1), (None, 0), (0, None)])
    def test_there_is_nobody_to_send_to(self, destination, source):
        with pytest.raises(ValueError, match='rank 0 is alone'):
            LocalEngine().send_recv(torch.zeros(1), destination, source)


def test_a_signal_that_a_workers_thread_received_is_handled_while_workers_run():
    handled = threading.Event()

    def work(engine):
        if engine.rank == 0:
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return handled.wait(10)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: handled.set())
    try:
        assert simulate(2, work) == [True, True]
    finally:
        signal.signal(signal.SIGUSR1, before)
