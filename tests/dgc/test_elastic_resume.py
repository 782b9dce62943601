"""All workers end, and go on from what each has saved; one that joins others takes their state."""

from __future__ import annotations

import io
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from elastic_helpers import Lighthouse, Worker, finish
from state_helpers import assert_same

import dgc
from dgc.algorithms import ALGORITHMS
from dgc.compressors import TopK
from dgc.elastic.resize import sums
from dgc.memory import Residual

pytest.importorskip('torchft', reason='torchft is not installed (there is no wheel for all)')

sparse = partial(dgc.deep_gradient_compression, 0.05)
exact = partial(sparse, memory=Residual(), compressor=TopK())
one_bit = partial(ALGORITHMS['one-bit-adam'].composition, 0.05, freeze_step=3)


@pytest.fixture
def lighthouse():
    server = Lighthouse()
    yield server
    server.stop()


def save(worker: Worker) -> bytes:
    file = io.BytesIO()
    torch.save([worker.values(), worker.optimizer.state_dict()], file)
    return file.getvalue()


def load(worker: Worker, content: bytes) -> None:
    values, state = torch.load(io.BytesIO(content), weights_only=True)
    with torch.no_grad():
        for (_, parameter), value in zip(worker.named, values, strict=True):
            parameter.copy_(value)
    worker.optimizer.load_state_dict(state)


def train(
    lighthouse, make, names: str, end: int, saves: int, files: dict[str, bytes], apart: float = 0.0
) -> list:
    """Make steps up to ``end``, from ``files`` where a worker has one; save after ``saves``.

    Args:
        lighthouse, make, names: Of the workers.
        end, saves: Numbers of steps.
        files: By name.
        apart: Seconds between the starts of two workers.

    Returns:
        The workers; ``files`` has what they have saved, by name.
    """
    barrier = threading.Barrier(len(names))  # who leaves before the others' last vote is a fault

    def work(worker):
        if worker.name in files:
            load(worker, files[worker.name])
        while worker.engine.committed < end:
            worker.step()
            if worker.engine.committed == saves:
                files[worker.name] = save(worker)
        barrier.wait(30)

    start = partial(Worker, start_workers=len(names))
    workers = []
    for name in names:
        workers.append(start(name, lighthouse, make, work))
        time.sleep(apart)
    finish(*workers)
    return workers


@pytest.mark.parametrize('make', [exact, one_bit], ids=['residuals', 'slices'])
def test_all_go_on_from_their_files_as_if_they_had_not_ended(lighthouse, make):
    files: dict[str, bytes] = {}
    straight = train(lighthouse, make, 'abc', 9, 5, files)
    again = train(lighthouse, make, 'abc', 9, 9, files, apart=0.5)  # the first ones wait
    for one, other in zip(straight, again, strict=True):
        assert_same(one.values(), other.values())
        assert_same(sums(one.optimizer.buckets), sums(other.optimizer.buckets))
        assert all(not change.healed for change in other.optimizer.changes)


def residual_of(content: bytes) -> torch.Tensor:
    """All that a worker has saved of its residual."""
    (own,) = torch.load(io.BytesIO(content), weights_only=True)[1]['ranks'].values()
    kept = [entries['residual'].reshape(-1) for entries in own['memory'].values() if entries]
    return torch.cat(kept).double()


def test_residuals_keep_their_mean_with_another_number_of_workers(lighthouse):
    """One of three does not come back, and one comes that has no file: its residual is empty."""
    files: dict[str, bytes] = {}
    train(lighthouse, exact, 'abc', 5, 5, files)
    found: dict[str, torch.Tensor] = {}

    def work(worker):
        if worker.name in files:
            load(worker, files[worker.name])
        worker.optimizer.begin()
        found[worker.name] = torch.cat(
            [b.buffers['residual'] for b in worker.optimizer.buckets if 'residual' in b.buffers]
        ).double()
        assert worker.engine.committed == 5
        assert worker.engine.size == 4
        end.wait(30)

    end = threading.Barrier(4)
    workers = [Worker(name, lighthouse, exact, work, start_workers=4) for name in 'abde']
    finish(*workers)
    for name in 'ab':
        expected = residual_of(files[name]).norm() * 4 / 3
        assert found[name].norm() == pytest.approx(float(expected), rel=1e-6)
        assert expected > 0
    assert not found['d'].any()
    assert not found['e'].any()
    for worker in workers[1:]:
        assert_same(worker.values(), workers[0].values())


def test_the_file_with_the_most_steps_counts_and_older_ones_lose_their_residual(lighthouse):
    files: dict[str, bytes] = {}
    train(lighthouse, exact, 'ab', 4, 4, files)
    older = dict(files)
    train(lighthouse, exact, 'ab', 7, 7, files)
    mixed = {'a': older['a'], 'b': files['b']}
    said: dict[str, Any] = {}

    def work(worker):
        load(worker, mixed[worker.name])
        worker.optimizer.begin()
        kept = [b.buffers['residual'] for b in worker.optimizer.buckets if 'residual' in b.buffers]
        said[worker.name] = any(each.any() for each in kept), worker.engine.committed
        end.wait(30)

    end = threading.Barrier(2)
    workers = [Worker(name, lighthouse, exact, work, start_workers=2) for name in 'ab']
    finish(*workers)
    assert said == {'a': (False, 7), 'b': (True, 7)}
    assert_same(workers[0].values(), workers[1].values())
    healed = [change.healed for change in workers[0].optimizer.changes]
    assert any(workers[0].engine.worker in each for each in healed)


def test_one_that_joins_others_takes_their_state_and_not_its_own_later_file(lighthouse):
    """They went on without it from an earlier state, as where its disk was out of reach."""
    files: dict[str, bytes] = {}
    train(lighthouse, exact, 'abc', 8, 8, files)
    trained = threading.Event()

    def work(worker):
        worker.until(lambda: worker.engine.committed == 3)
        trained.set()
        worker.until(lambda: worker.engine.size == 3)
        assert worker.engine.committed < 8
        finished.wait(30)

    def join(worker):
        load(worker, files['c'])
        assert worker.engine.committed == 8
        assert trained.wait(30)
        worker.step()
        assert worker.engine.committed < 8
        assert worker.engine.worker in worker.optimizer.changes[-1].healed
        assert not worker.optimizer.changes[-1].keeps
        with pytest.raises(RuntimeError, match='before begin'):
            worker.optimizer.load_state_dict(worker.optimizer.state_dict())
        finished.wait(30)

    finished = threading.Barrier(3)
    workers = [Worker(name, lighthouse, exact, work, start_workers=2) for name in 'ab']
    workers.append(Worker('c', lighthouse, exact, join))
    finish(*workers)
    for worker in workers[1:]:
        assert_same(worker.values(), workers[0].values())


def test_slices_stay_whole_where_a_worker_joins(lighthouse):
    """It owned all elements while it was alone, and counted as one of their owners."""
    joins = threading.Event()
    before: dict[str, list] = {}
    after: dict[str, list] = {}

    def slices(worker):
        return [
            bucket.state.expanded('exchange', entry)
            for bucket in worker.optimizer.buckets
            for entry in bucket.state.parts['exchange']
            if 'exchange' in bucket.state and bucket.state['exchange'][entry].dim() == 1
        ]

    def work(worker):
        if worker.name == 'c':
            assert joins.wait(30)
        while worker.name != 'c' and worker.engine.committed < 5:
            worker.step()
        if worker.name != 'c':
            before[worker.name] = slices(worker)
            joins.set()
        while worker.engine.size < 3:
            if worker.name != 'c':
                worker.engine.poll()
            worker.optimizer.begin()
        after[worker.name] = slices(worker)
        end.wait(30)

    end = threading.Barrier(3)
    workers = [Worker(name, lighthouse, one_bit, work, start_workers=2) for name in 'ab']
    finish(*workers, Worker('c', lighthouse, one_bit, work))
    total = [sum(each) for each in zip(*(before[name] for name in 'ab'), strict=True)]
    assert any(each.any() for each in total)
    assert_same([sum(each) for each in zip(*(after[name] for name in 'abc'), strict=True)], total)
