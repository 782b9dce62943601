"""Workers that die, stall and join: what is applied, what is lost, and what the others do."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from dgc_helpers import SHAPES, loss
from elastic_helpers import LIMIT, RATE, Died, Lighthouse, Worker, finish
from state_helpers import assert_same
from torch import Tensor

import dgc
from dgc.algorithms import ALGORITHMS, Kind
from dgc.clipping import ClipByGlobalNorm
from dgc.compressors import TopK
from dgc.elastic.optimizer import check_elastic
from dgc.engines.base import EngineError, LostError
from dgc.engines.torchft_engine import Place, source_of
from dgc.memory import MomentumCorrection, Residual
from dgc.state import OwnedSlice

pytest.importorskip('torchft', reason='torchft is not installed (there is no wheel for all)')


sparse = partial(dgc.deep_gradient_compression, 0.05)
residual = partial(sparse, memory=Residual(), compressor=TopK())
SMALL = {'chunk': {'chunk': 8}, 'power-sgd': {'rank': 2}, 'demo': {'topk': 4, 'chunk': 8},
         'one-bit-adam': {'freeze_step': 3}, 'oktopk': {'threshold_period': 2}}  # fmt: skip
AT_A_TIME = 8  # groups of workers, of which most wait
REFUSED = {'omgs', 'mgwfbp', 'lags', 'hierarchical', 'spardl-teams', 'spardl-bruck'}


@pytest.fixture
def lighthouse():
    server = Lighthouse()
    yield server
    server.stop()


def composition_of(name: str) -> dgc.Composition:
    algorithm = ALGORITHMS[name]
    settings = {'local_size': 2} if name == 'hierarchical' else SMALL.get(name, {})
    return algorithm.composition(0.05, **settings)


def assert_agree(*workers: Worker) -> None:
    for worker in workers[1:]:
        assert_same(workers[0].values(), worker.values())
        assert worker.engine.committed == workers[0].engine.committed


def state_of(worker: Worker) -> list[Any]:
    """All that a step changes."""
    optimizer = worker.optimizer
    states = [bucket.state.snapshot() for bucket in optimizer.buckets]
    return [worker.values(), states, optimizer.optimizer.state_dict()['state']]


class Ledger:
    """What goes in and comes out of all workers, in the mean, by parameter: float64.

    Attributes:
        balance: The sum of it, where what comes out is negative.
        totals: The sum of absolute values.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.totals = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES.values()]
        self.balance = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES.values()]

    def add(self, tensors: list[Tensor], factor: float) -> None:
        with self._lock:
            for balance, total, tensor in zip(self.balance, self.totals, tensors, strict=True):
                balance.add_(tensor.double(), alpha=factor)
                total.add_(tensor.double().abs(), alpha=abs(factor))

    def add_kept(self, worker: Worker, factor: float, role: str = 'residual') -> None:
        """Add what a worker has not sent; uncompressed parameters keep nothing."""
        kept = [torch.zeros(shape) for shape in SHAPES.values()]
        places = {name: place for place, name in enumerate(SHAPES)}
        for bucket in worker.optimizer.buckets:
            if role in bucket.buffers:
                for name, view in bucket.spec.views(bucket.buffers[role]):
                    kept[places[name]] += view
        self.add(kept, factor)


def recorded_step(worker: Worker, ledger: Ledger, applies: bool) -> bool:
    """Make a step: gradients go in, and what worker 'a' applies goes out."""
    optimizer, engine = worker.optimizer, worker.engine
    optimizer.begin()
    size, before, earlier = engine.size, worker.values(), state_of(worker)
    worker.gradients(engine.committed)
    gradients = [parameter.grad.clone() for _, parameter in worker.named]
    optimizer.step()
    if not optimizer.committed:
        assert_same(state_of(worker), earlier)  # as for a skipped step
        return False
    ledger.add(gradients, 1 / size)
    if applies:
        after = worker.values()
        ledger.add([(b - a) / RATE for b, a in zip(before, after, strict=True)], -1.0)
    return True


@pytest.mark.parametrize('backup', [0, 3], ids=['no copy', 'copies'])
def test_what_goes_in_is_applied_kept_or_lost_with_the_dead(lighthouse, backup):
    """In the mean: Σ gradients = Σ updates + Σ residuals + what the dead had not sent."""
    ledger, copies = Ledger(), Ledger()
    joins = threading.Event()

    def survive(worker):
        while worker.engine.committed < 8 or worker.engine.size < 3:
            recorded_step(worker, ledger, applies=worker.name == 'a')
            if worker.engine.committed >= 8:
                joins.set()
                time.sleep(0.01)
        target = 24
        while worker.engine.committed < target:
            recorded_step(worker, ledger, applies=worker.name == 'a')
        ledger.add_kept(worker, -1 / worker.engine.size)

    def die(worker):
        while worker.engine.committed < 5:
            recorded_step(worker, ledger, applies=False)
            if backup and worker.engine.committed == 3:
                worker.optimizer.begin()  # which copies the residual
                copies.add_kept(worker, 1 / worker.engine.size)
        worker.optimizer.begin()
        ledger.add_kept(worker, -1 / worker.engine.size)  # lost
        worker.gradients(5)  # some of which may be sent
        raise Died

    def join(worker):
        joins.wait(30)
        worker.optimizer.begin()
        assert all(not bucket.buffers['residual'].any() for bucket in sparse_buckets(worker))
        while worker.engine.committed < 24:
            recorded_step(worker, ledger, applies=False)
        ledger.add_kept(worker, -1 / worker.engine.size)

    settings = {'start_workers': 3, 'residual_backup': backup}
    first = [Worker(name, lighthouse, residual, survive, **settings) for name in 'ab']
    dead = Worker('c', lighthouse, residual, die, **settings)
    joined = Worker('d', lighthouse, residual, join, **settings)
    finish(*first, dead, joined)
    assert_agree(*first, joined)
    expected = copies.balance if backup else [0 * each for each in copies.balance]
    assert bool(backup) == any(each.any() for each in expected)
    for difference, copy, total in zip(ledger.balance, expected, ledger.totals, strict=True):
        # A copy that is sent again was in the dead one's residual, which counts as lost.
        assert (difference + copy).norm() <= 1e-6 * total.norm()


def sparse_buckets(worker: Worker) -> list[Any]:
    return [bucket for bucket in worker.optimizer.buckets if 'residual' in bucket.buffers]


def test_a_step_in_which_a_worker_dies_is_applied_on_no_worker(lighthouse):
    """Momentum and velocity are then as before the step, and the next step counts the others."""
    lost: dict[str, int] = {}

    def survive(worker):
        worker.until(lambda: worker.engine.committed >= 3)
        while worker.engine.size == 3:
            worker.optimizer.begin()
            before = state_of(worker)
            if worker.engine.size == 3 and not worker.step():
                assert_same(state_of(worker), before)
        lost[worker.name] = worker.optimizer.lost_steps
        worker.until(lambda: worker.engine.committed >= 8)

    def die(worker):
        worker.until(lambda: worker.engine.committed >= 3)
        worker.optimizer.begin()
        raise Died

    make = partial(sparse, memory=MomentumCorrection())
    workers = [Worker(name, lighthouse, make, survive, start_workers=3) for name in 'ab']
    finish(*workers, Worker('c', lighthouse, make, die, start_workers=3))
    assert_agree(*workers)
    assert lost == {'a': 1, 'b': 1}
    change = workers[0].optimizer.changes[-1]
    assert [worker.rpartition(':')[0] for worker in change.lost] == ['c']
    assert 'lost c and its residual (norm ' in str(change)


def test_a_worker_that_does_not_talk_to_the_dead_one_finds_out_at_once(lighthouse):
    """In a ring of four: its neighbours leave the group, which closes their connections to it."""

    def work(worker):
        worker.until(lambda: worker.engine.committed >= 3)
        if worker.name == 'b':
            worker.optimizer.begin()
            raise Died
        worker.until(lambda: worker.engine.size == 3)
        target = worker.engine.committed + 3
        worker.until(lambda: worker.engine.committed >= target)

    settings = {'start_workers': 4, 'drop_seconds': 45.0}
    workers = [Worker(name, lighthouse, sparse, work, **settings) for name in 'abcd']
    finish(*workers)
    assert_agree(*(worker for worker in workers if worker.name != 'b'))
    assert all(worker.optimizer.changes[-1].seconds < 20 for worker in workers[2:])


@pytest.mark.parametrize('everybody', [False, True], ids=['by one', 'by all'])
def test_a_vote_without_an_answer_has_the_same_outcome_for_all(lighthouse, everybody):
    end = threading.Barrier(3)  # who leaves before the others have the last votes is one more fault

    def work(worker):
        engine = worker.engine
        worker.until(lambda: engine.committed >= 3)
        gather, vote = engine._gather, threading.Event()

        def unanswered(tensor, seconds=None):
            if vote.is_set() or len(tensor) != 5:  # a vote has five numbers
                return gather(tensor, seconds)
            vote.set()
            if not everybody:
                gather(tensor, seconds)
            engine._break()
            raise LostError('no answer')

        if everybody or worker.name == 'b':
            engine._gather = unanswered
        worker.until(lambda: vote.is_set() or not (everybody or worker.name == 'b'))
        engine._gather = gather
        worker.until(lambda: engine.committed >= 8 and engine.size == 3)
        end.wait(LIMIT)

    workers = [Worker(name, lighthouse, sparse, work, start_workers=3) for name in 'abc']
    finish(*workers)
    assert_agree(*workers)
    assert workers[1].optimizer.lost_steps == int(everybody)  # else b applied it, as the others
    assert all(not worker.optimizer.changes[-1].healed for worker in workers)


def test_a_stalled_worker_is_named_dropped_and_takes_the_state_of_the_others(lighthouse, caplog):
    goes_on = threading.Event()

    def go_on(worker):
        worker.until(lambda: worker.engine.committed >= 3)
        worker.until(lambda: worker.engine.size == 2)
        worker.until(lambda: worker.engine.committed >= 8)
        goes_on.set()
        worker.until(lambda: worker.engine.size == 3)
        target = 10 * (worker.engine.committed // 10 + 2)
        worker.until(lambda: worker.engine.committed >= target)

    def stall(worker):
        worker.until(lambda: worker.engine.committed >= 3)
        worker.optimizer.begin()
        assert goes_on.wait(30)
        before = worker.engine.committed
        assert not worker.step()
        worker.until(lambda: worker.engine.size == 3)
        assert worker.engine.committed > before + 1
        change = worker.optimizer.changes[-1]
        assert worker.engine.worker in change.healed
        assert change.keeps
        target = 10 * (worker.engine.committed // 10 + 2)
        worker.until(lambda: worker.engine.committed >= target)

    settings = {'start_workers': 3, 'drop_seconds': 2.0}
    workers = [Worker(name, lighthouse, sparse, go_on, **settings) for name in 'ab']
    workers.append(Worker('c', lighthouse, sparse, stall, **settings))
    finish(*workers)
    assert_agree(*workers)
    lines = [line for line in caplog.messages if 'has waited' in line]
    assert lines
    for line in lines:
        assert re.search(
            r'^[ab] \(rank [01]\) has waited \d+ s in \w+ of bucket .+ for c \(rank 2\), which '
            r'runs and .+; it is dropped after 2 s \(configs\.elastic\.drop_seconds\)$',
            line,
        )
    drops = [line for line in caplog.messages if 'is not applied' in line and 'given up' in line]
    assert any('of waiting for c (rank 2), which runs' in line for line in drops)


def test_without_a_lighthouse_training_goes_on_and_nobody_joins_until_there_is_one(lighthouse):
    stopped, started = threading.Event(), threading.Event()

    def work(worker):
        worker.until(lambda: worker.engine.committed >= 3)
        if worker.name == 'a':
            lighthouse.stop()
            stopped.set()
        assert stopped.wait(30)
        first = worker.engine.committed
        worker.until(lambda: worker.engine.committed >= first + 10)
        if worker.name == 'a':
            assert worker.optimizer.lost_steps == 0
            lighthouse.start()
            started.set()
        worker.until(lambda: worker.engine.size == 3)
        target = worker.engine.committed + 5
        worker.until(lambda: worker.engine.committed >= target)

    def join(worker):
        assert started.wait(60)
        worker.until(lambda: worker.engine.size == 3)
        target = worker.engine.committed + 5
        worker.until(lambda: worker.engine.committed >= target)

    workers = [Worker(name, lighthouse, sparse, work, start_workers=2) for name in 'ab']
    workers.append(Worker('c', lighthouse, sparse, join))
    finish(*workers)
    assert_agree(*workers)


def test_a_gradient_that_is_not_finite_ends_all_workers(lighthouse):
    """DistributedOptimizer.step() once passed over what ElasticOptimizer adds to it."""

    def work(worker: Worker) -> None:
        worker.until(lambda: worker.engine.size == 2)
        before = worker.values()
        worker.optimizer.begin()
        worker.optimizer.zero_grad()
        factor = torch.nan if worker.name == 'a' else 1.0
        (factor * loss(worker.named, worker.number, 0)).backward()
        with pytest.raises(dgc.NonFiniteGradientError):
            worker.optimizer.step()
        assert all(map(torch.equal, worker.values(), before))

    finish(*(Worker(name, lighthouse, partial(composition_of, 'dgc'), work) for name in 'ab'))


def test_a_worker_that_trains_something_else_is_refused(lighthouse):
    done = threading.Event()

    def work(worker):
        worker.until(lambda: worker.engine.committed >= 2)
        worker.until(done.is_set)

    def join(worker):
        time.sleep(0.2)
        try:
            worker.until(lambda: worker.engine.size > 1)
        finally:
            done.set()

    first = Worker('a', lighthouse, sparse, work)
    other = Worker('b', lighthouse, dgc.dense, join)
    with pytest.raises(EngineError, match=r'b:.* does not train what a:.* does'):
        finish(other)
    finish(first)


def test_every_algorithm_goes_on_with_another_number_of_workers():
    """Some at a time, each with a lighthouse of its own: who has died is missed after a second."""

    def survive(worker):
        worker.until(lambda: worker.engine.committed >= 4)
        worker.until(lambda: worker.engine.size == 2)
        target = worker.engine.committed + 3
        worker.until(lambda: worker.engine.committed >= target)

    def die(worker):
        worker.until(lambda: worker.engine.committed >= 4)
        raise Died

    def try_one(make):
        lighthouse = Lighthouse()
        start = partial(Worker, lighthouse=lighthouse, composition=make, start_workers=3)
        workers = [start(each, work=survive) for each in 'ab']
        finish(*workers, start('c', work=die))
        assert_agree(*workers)
        assert all(value.isfinite().all() for value in workers[0].values())
        lighthouse.stop()

    synchronous = [name for name, row in ALGORITHMS.items() if row.kind is Kind.SYNCHRONOUS]
    makes = [partial(composition_of, name) for name in sorted({*synchronous} - REFUSED)]
    makes.append(partial(sparse, gradient_clipping=ClipByGlobalNorm(1.0)))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        assert list(pool.map(try_one, makes)) == [None] * len(makes)


@pytest.mark.parametrize('name', sorted(REFUSED))
def test_an_algorithm_that_needs_a_fixed_number_of_workers_is_refused(name):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    with pytest.raises(ValueError, match='engine torchft'):
        check_elastic(optimizer, composition_of(name))


def test_slices_are_cut_anew_and_those_of_the_dead_are_lost(lighthouse):
    """An owner's rounding error, of 1-bit Adam's compressed all-reduce."""
    before: dict[str, list[Tensor]] = {}

    def slices(worker):
        return [
            bucket.state.expanded('exchange', entry)
            for bucket in worker.optimizer.buckets
            for entry, kind in bucket.state.parts['exchange'].items()
            if isinstance(kind, OwnedSlice)
        ]

    def work(worker):
        worker.until(lambda: worker.engine.committed >= 4)
        worker.optimizer.begin()
        before[worker.name] = slices(worker)
        if worker.name == 'c':
            raise Died
        while worker.engine.size == 3:
            worker.gradients(4)
            worker.optimizer.step()
            worker.optimizer.begin()
        after[worker.name] = slices(worker)

    after: dict[str, list[Tensor]] = {}
    make = partial(composition_of, 'one-bit-adam')
    workers = [Worker(name, lighthouse, make, work, start_workers=3) for name in 'abc']
    finish(*workers)
    kept = [a + b for a, b in zip(before['a'], before['b'], strict=True)]
    assert kept and any(each.any() for each in kept)
    assert_same([a + b for a, b in zip(after['a'], after['b'], strict=True)], kept)


def test_the_source_has_the_most_steps_and_the_history_of_most():
    new, old = Place(0, 7, 0, 1, 1), Place(5, 11, 0, 0, 1)
    assert source_of([new, old]) == 1
    assert source_of([new, new]) == 0
    assert source_of([old, old._replace(history=12), old._replace(history=12)]) == 1
    assert source_of([old, old._replace(committed=6, history=13)]) == 1
    lone = Place(3, 99, 0, 0, 1)  # it trained alone, while the others were not to be reached
    assert source_of([lone, old, old]) == 1


def test_what_needs_a_fixed_number_of_workers_is_refused_by_name():
    plain = [torch.nn.Parameter(torch.zeros(1))]
    with pytest.raises(ValueError, match='LBFGS moves the parameters several times'):
        check_elastic(torch.optim.LBFGS(plain), dgc.dense())
    with pytest.raises(ValueError, match=r'SparDL cannot serve 1 workers'):
        check_elastic(torch.optim.SGD(plain, 0.1), composition_of('spardl-teams'))
