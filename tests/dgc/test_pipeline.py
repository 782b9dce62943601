"""Making the next bucket's message while the one before is exchanged: the same bits, and no trace
of errors, skipped steps and ended processes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from dgc_helpers import loss, parameters, train, values, wrap
from same_bits import tensors_of
from test_engines_thread import ThreadedEngine
from test_properties import TABLE, fits, momenta
from worlds import World

import dgc
from dgc.clipping import ClipByValue
from dgc.engines import EngineError, base
from dgc.engines.cores import available_cores
from dgc.planner import PerTensor
from dgc.reducer import Reducer

pytestmark = pytest.mark.filterwarnings('ignore:.*loses part of what it cuts')

STEPS, BAD_STEP = 3, 1
APART = PerTensor(dense_bytes=8)  # a bucket for each parameter
WAIT = 30.0  # seconds after which a test fails


def digest(engine: dgc.Engine, row: str, pipeline: bool, nonfinite: str) -> tuple[str, int]:
    """Train in several buckets; return a hash of all parameters, gradients and state, and the
    number of threads that made messages.

    With 'skip', one rank's gradient is not finite in one step.
    """
    engine.pipeline = pipeline
    named = parameters()
    momentum = max(momentum for momentum, _ in momenta(row))
    composition = replace(TABLE[row].make(), planner=APART, nonfinite=nonfinite)
    optimizer = wrap(named, composition, engine, momentum=momentum, steps_per_epoch=3)
    found = hashlib.sha256()
    for step in range(STEPS):
        optimizer.zero_grad()
        factor = 1.0
        if nonfinite == 'skip' and step == BAD_STEP and engine.rank == 0:
            factor = torch.inf
        (factor * loss(named, engine.rank, step)).backward()
        optimizer.step()
        for _, parameter in named:
            found.update(parameter.detach().numpy().tobytes())
            found.update(parameter.grad.detach().clone().numpy().tobytes())
    for tensor in tensors_of(optimizer.state_dict()):
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    threads = int(engine._computing is not None)
    engine.close()
    return found.hexdigest(), threads


@pytest.mark.parametrize('row', TABLE)
def test_every_row_gives_the_same_bits_with_and_without(row, monkeypatch):
    monkeypatch.setattr(Reducer, '_waits_for_step', lambda *_: True)  # all buckets at once
    nonfinite = ('skip', 'stop')[[*TABLE].index(row) % 2]
    size = next(size for size in (2, 3, 4) if fits(row, size))
    without = dgc.simulate(size, lambda engine: digest(engine, row, False, nonfinite))
    pipelined = dgc.simulate(size, lambda engine: digest(engine, row, True, nonfinite))
    assert [found for found, _ in pipelined] == [found for found, _ in without]
    assert [threads for _, threads in without] == [0] * size
    alone = not row.startswith('hierarchical')  # which calls the engine before it selects
    assert [threads for _, threads in pipelined] == [int(alone)] * size


@pytest.mark.parametrize(
    'row', ['dgc', 'dgc skip', 'gtopk', 'spardl packed int8', 'power-sgd', 'dense', 'hierarchical']
)
@pytest.mark.xdist_group('torchrun 2')
def test_ranks_of_processes_may_differ_in_it(worlds, row):
    world: World = worlds('torchrun', 2)
    assert world.run('real_worker:pipelined', row, [True, False]) == world.run(
        'real_worker:pipelined', row, [False, False]
    )


class Waiting(ThreadedEngine):
    """An engine whose exchange of a bucket lasts until the message of the next one is made.

    Attributes:
        made: The names of the buckets whose messages are made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pipeline = True
        self.made: list[str] = []
        self.overlaps = 0
        self._more = threading.Condition()

    def note(self, memory: object) -> None:
        """Note the messages that ``memory`` makes."""
        select = memory.select

        def noted(bucket, compressor):
            found = select(bucket, compressor)
            with self._more:
                self.made.append(bucket.name)
                self._more.notify_all()
            return found

        memory.select = noted

    def _all_reduce(self, tensor):
        count = len(self.made)
        is_last = count % 4 == 0  # of a step
        with self._more:
            self.overlaps += is_last or self._more.wait_for(lambda: len(self.made) > count, WAIT)
        return tensor


def test_the_next_message_is_made_while_a_bucket_is_exchanged():
    engine, named = Waiting(), parameters()
    composition = dgc.dense(planner=APART)
    engine.note(composition.memory)
    optimizer = wrap(named, composition, engine)
    train(optimizer, named, 1)
    assert engine.made == ['scale', 'bias', 'narrow.weight', 'wide.weight']
    assert engine.overlaps == 4
    engine.close()


class Failing(ThreadedEngine):
    """An engine on which one all-gather of a bucket fails, by its number."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.fails_at, self.calls = fails_at, 0

    def _all_gather(self, tensor):
        self.calls += bool(self.bucket)
        if self.calls == self.fails_at and self.bucket:
            raise ConnectionError('the cable is out')
        return super()._all_gather(tensor)


def trained(engine: dgc.Engine, pipeline: bool, fails: bool) -> list[torch.Tensor]:
    """Parameters after steps of which one fails, and is tried again where it does."""
    engine.pipeline = pipeline
    named = parameters()
    composition = dgc.deep_gradient_compression(0.05, planner=APART, nonfinite='skip')
    optimizer = wrap(named, composition, engine, momentum=0.9)
    train(optimizer, named, 2)
    if fails:
        with pytest.raises(ConnectionError, match='the cable is out'):
            train(optimizer, named, [2])
    train(optimizer, named, [2, 3])
    engine.close()
    return [*values(named), *tensors_of(optimizer.state_dict()['ranks'])]


@pytest.mark.parametrize('fails_at', [5, 6])  # of two compressed buckets a step, in the third
def test_a_failed_exchange_leaves_no_trace(fails_at):
    engine = Failing(fails_at)
    found = trained(engine, pipeline=True, fails=True)
    assert engine.calls == fails_at + 4  # what came after the one that failed was not sent
    expected = trained(ThreadedEngine(), pipeline=False, fails=False)
    assert all(map(torch.equal, found, expected))


def test_a_message_that_cannot_be_made_stops_its_bucket_and_no_earlier_one():
    engine, named, sent = ThreadedEngine(), parameters(), []
    engine.pipeline = True
    composition = dgc.deep_gradient_compression(0.05, planner=APART, nonfinite='skip')
    optimizer = wrap(named, composition, engine)
    optimizer.reducer.watchers['test'] = lambda bucket, _: sent.append(bucket.name)
    names = [bucket.name for bucket in optimizer.buckets]
    select = composition.memory.select

    def fails(bucket, compressor):
        if bucket.name == names[2]:
            raise ArithmeticError('no such root')
        return select(bucket, compressor)

    composition.memory.select = fails
    with pytest.raises(ArithmeticError, match='no such root'):
        train(optimizer, named, 1)
    assert sent == names[:2]
    composition.memory.select = select
    train(optimizer, named, 2)
    assert sent[2:] == 2 * names
    engine.close()


class CallingClip(ClipByValue):
    """Asks the other ranks, which only a clipping that ``needs_all`` may."""

    def clip(self, buckets, engine):
        engine.all_reduce(torch.ones(1))
        super().clip(buckets, engine)


@pytest.mark.parametrize('pipeline', [False, True])
def test_a_part_that_calls_the_engine_is_refused_instead_of_waiting_for_ever(pipeline):
    engine, named = ThreadedEngine(), parameters()
    engine.pipeline = pipeline
    composition = dgc.deep_gradient_compression(0.05, gradient_clipping=CallingClip(1.0))
    optimizer = wrap(named, composition, engine)
    if pipeline:
        with pytest.raises(EngineError, match=r"called the engine.*set the engine's pipeline"):
            train(optimizer, named, 1)
    else:
        train(optimizer, named, 1)
    engine.close()


class Placed(ThreadedEngine):
    """One rank of several on a machine."""

    def __init__(self, size: int, local_size: int) -> None:
        super().__init__()
        self.size, self.local_size = size, local_size


class TestWhere:
    @pytest.mark.parametrize(
        ('cores', 'size', 'local_size', 'expected'),
        [
            (1.0, 2, 1, False),
            (2.0, 2, 1, True),
            (2.0, 2, 2, False),
            (4.0, 2, 2, True),
            (3.5, 2, 2, False),
            (8.0, 1, 1, False),  # alone, nothing is sent
        ],
    )
    def test_a_rank_needs_a_second_core(self, cores, size, local_size, expected, monkeypatch):
        monkeypatch.setattr(base, 'available_cores', lambda: cores)
        engine = Placed(size, local_size)
        assert engine.is_pipelined is expected
        before = {*threading.enumerate()}
        assert engine.beside(lambda: 5)() == 5
        assert bool({*threading.enumerate()} - before) is expected
        engine.close()
        assert not engine._duplicates and not {*threading.enumerate()} & ({*before} - before)

    def test_a_setting_decides_before_that(self, monkeypatch):
        monkeypatch.setattr(base, 'available_cores', lambda: 1.0)
        engine = Placed(2, 1)
        engine.pipeline = True
        assert engine.is_pipelined
        engine.close()
        assert dgc.create('local', pipeline=True).is_pipelined

    def test_an_engine_without_a_thread_has_none(self):
        assert dgc.simulate(2, lambda engine: engine.is_pipelined) == [False, False]

    def test_here(self):
        assert available_cores() > 0


class TestClosed:
    def test_its_thread_is_gone_and_later_jobs_are_refused(self):
        before = {*threading.enumerate()}
        engine = ThreadedEngine()
        engine.pipeline = True
        assert engine.beside(lambda: 5)() == 5
        assert 'dgc-compute' in {each.name for each in {*threading.enumerate()} - before}
        engine.close()
        assert not {*threading.enumerate()} - before
        with pytest.raises(EngineError, match='the engine is closed'):
            engine.beside(lambda: 5)

    def test_a_process_that_ends_within_a_step_ends_cleanly(self, warm_python):
        ended = subprocess.run(
            [sys.executable, '-c', PROGRAM], capture_output=True, text=True, timeout=300
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'left: []\n', '')


PROGRAM = """
import atexit, threading

def report():  # registered before others, so called after them
    print('left:', [each.name for each in threading.enumerate() if each.name == 'dgc-compute'])

atexit.register(report)
import torch, dgc

model = torch.nn.Linear(1000, 1000)
engine = dgc.create('local', pipeline=True)
optimizer = dgc.DGCSGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = dgc.DistributedOptimizer(optimizer, model.named_parameters(), engine=engine)
model(torch.ones(1, 1000)).sum().backward()
"""
