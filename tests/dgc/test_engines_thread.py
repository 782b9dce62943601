"""An engine's thread, and what a closed engine leaves: nothing that the next one, or the end of the
process, trips over."""

from __future__ import annotations

import shutil
import socket
import threading

import pytest
import torch
from again_worker import TIMES
from dgc_helpers import parameters, train, values, wrap
from process_helpers import start

import dgc
from dgc.engines import EngineError, LocalEngine
from dgc.engines.jobs import JobThread

SIZE = 3
NO_MPI = pytest.mark.skipif(not shutil.which('mpirun'), reason='no MPI')


@pytest.mark.parametrize(
    'launcher',
    [
        pytest.param('torchrun', id='torchrun, which keeps the store'),
        pytest.param('mpirun', marks=[pytest.mark.mpi, NO_MPI], id='mpirun, where rank 0 keeps it'),
    ],
)
def test_an_engine_can_be_closed_and_another_made(launcher, monkeypatch):
    with socket.socket() as free:  # for rank 0 under mpirun; torchrun has a port of its own
        free.bind(('127.0.0.1', 0))
        monkeypatch.setenv('MASTER_PORT', str(free.getsockname()[1]))
    assert start(launcher, SIZE, 'again_worker.py').count(f'all {TIMES}\n') == SIZE


class ThreadedEngine(LocalEngine):
    """A local engine with a thread of its own, as engines between processes have."""

    has_thread = True


class TestTheEnginesThread:
    def test_jobs_run_on_one_thread_in_the_order_in_which_they_came(self):
        thread, done = JobThread('test'), []
        futures = [
            thread.submit(lambda n=n: done.append((n, thread.is_current))) for n in range(99)
        ]
        assert [future.result(timeout=30) for future in futures] == [None] * 99
        assert done == [(number, True) for number in range(99)]
        assert not thread.is_current

    def test_errors_go_to_whoever_waits_and_the_thread_lives_on(self):
        engine = ThreadedEngine()
        failing = engine.submit(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            failing.result(timeout=30)
        assert engine.submit(lambda: 5).result(timeout=30) == 5

    def test_a_job_may_call_the_engine(self):
        engine = ThreadedEngine()
        job = engine.submit(lambda: engine.all_reduce(torch.ones(2)).tolist())
        assert job.result(timeout=30) == [1, 1]

    def test_training_does_not_depend_on_it(self):
        results = []
        for engine in (LocalEngine(), ThreadedEngine()):
            named = parameters()
            optimizer = wrap(named, dgc.deep_gradient_compression(0.02), engine, momentum=0.9)
            train(optimizer, named, 5)
            results.append(values(named))
        assert all(map(torch.equal, *results))


class TestClosed:
    def test_its_thread_is_gone_and_what_was_submitted_is_done(self):
        before = {*threading.enumerate()}
        engine, release, done = ThreadedEngine(), threading.Event(), []
        engine.submit(release.wait)
        engine.submit(lambda: done.append('both'))
        assert {*threading.enumerate()} - before
        release.set()
        engine.close()
        assert done == ['both']
        assert not {*threading.enumerate()} - before

    @pytest.mark.parametrize(
        'call',
        [
            lambda engine: engine.barrier(),
            lambda engine: engine.all_reduce(torch.ones(2)),
            lambda engine: engine.submit(print),
        ],
        ids=['barrier', 'all_reduce', 'submit'],
    )
    def test_a_later_call_is_refused_instead_of_waiting_for_ever(self, call):
        engine = ThreadedEngine()
        engine.close()
        with pytest.raises(EngineError, match='the engine is closed'):
            call(engine)
