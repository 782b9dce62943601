"""Members of a quorum of which one never comes: the others find out, and do not wait in vain."""

from __future__ import annotations

import threading
import time

import pytest
from elastic_helpers import Lighthouse, Worker, finish
from torch.distributed import TCPStore

import dgc
from dgc.engines import torchft_engine
from dgc.engines.base import LostError
from dgc.engines.meeting import Quorum
from dgc.engines.notice import Notice

pytest.importorskip('torchft', reason='torchft is not installed (there is no wheel for all)')

CONNECT = 60.0  # seconds that a member waits for one that may still come, here
AT_ONCE = 25.0  # seconds, on a busy machine: also after a wait of drop_seconds


@pytest.fixture
def lighthouse(monkeypatch):
    monkeypatch.setattr(torchft_engine, 'CONNECT_SECONDS', CONNECT)
    server = Lighthouse()
    yield server
    server.stop()


class Member:
    """What a member of a quorum serves."""

    def __init__(self, given_up: int) -> None:
        self.store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
        self.notice = Notice('127.0.0.1')
        self.notice.given_up = given_up


def quorum_of(members: list[Member], questions: tuple[int, ...]) -> Quorum:
    stores = tuple(f'127.0.0.1:{member.store.port}' for member in members)
    notices = tuple(member.notice.address for member in members)
    return Quorum(tuple('abc'[: len(members)]), stores, notices, questions, 'k')


def test_who_has_given_up_its_question_is_not_waited_for():
    members = [Member(0), Member(7)]
    begin = time.monotonic()
    with pytest.raises(LostError, match='b asks for another quorum'):
        quorum_of(members, (3, 7)).meet(0, CONNECT)
    assert time.monotonic() - begin < AT_ONCE


def test_who_has_died_is_not_waited_for():
    members = [Member(0), Member(0)]
    quorum = quorum_of(members, (1, 1))
    begin = time.monotonic()
    del members[1].store
    with pytest.raises(LostError, match='b died after asking for a quorum'):
        quorum.meet(0, CONNECT)
    assert quorum.absent([0, 1]) == ['b has died']
    assert time.monotonic() - begin < AT_ONCE


def test_who_may_still_come_is_waited_for():
    members = [Member(0), Member(6)]
    quorum = quorum_of(members, (3, 7))
    with pytest.raises(LostError, match=r'b did not come to the quorum in 0\.5 s'):
        quorum.meet(0, 0.5)
    # b finds that a has left, and does not wait for it either.
    with pytest.raises(LostError, match='a has left the quorum'):
        quorum.meet(1, CONNECT)


def test_a_worker_that_has_asked_for_long_joins_after_an_outage(lighthouse):
    """A new lighthouse knows no earlier quorum, and does not wait for members where a question is
    older than its time-out: it answered to that one and the first member, again and again."""
    seconds = {}
    end = threading.Barrier(3)
    back = threading.Event()

    def work(worker):
        worker.until(lambda: worker.engine.size == 2)
        both.wait(60)
        if worker.name == 'a':
            lighthouse.stop()
            lighthouse.start()
            back.set()
        assert back.wait(60)
        time.sleep(3.5)  # a long step: the question of c is older than the lighthouse waits
        if worker.name == 'b':
            time.sleep(0.3)  # and a asks first
        begin = time.monotonic()
        worker.until(lambda: worker.engine.size == 3)
        seconds[worker.name] = time.monotonic() - begin
        end.wait(60)

    def join(worker):
        assert back.wait(60)
        time.sleep(1.0)  # until it knows that a and b are there
        worker.until(lambda: worker.engine.size == 3)
        end.wait(60)

    both = threading.Barrier(2)
    workers = [Worker(name, lighthouse, dgc.dense, work, start_workers=2) for name in 'ab']
    workers.append(Worker('c', lighthouse, dgc.dense, join, start_workers=3))
    finish(*workers)
    assert max(seconds.values()) < AT_ONCE
