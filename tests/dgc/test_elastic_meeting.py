"""Members of a quorum of which one never comes: the others find out, and do not wait in vain."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from elastic_helpers import Lighthouse, Worker, finish

import dgc
from dgc.engines import torchft_engine
from dgc.engines.base import LostError
from dgc.engines.lighthouse import UnreachableError
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
        self.notice = Notice('127.0.0.1')
        self.notice.given_up = given_up


def quorum_of(members: list[Member], questions: tuple[int, ...]) -> Quorum:
    notices = tuple(member.notice.address for member in members)
    return Quorum(tuple('abc'[: len(members)]), notices, notices, questions, 'k')


def test_who_has_given_up_its_question_is_not_waited_for():
    members = [Member(0), Member(7)]
    begin = time.monotonic()
    with pytest.raises(LostError, match='b asks for another quorum'):
        quorum_of(members, (3, 7)).meet(members[0].notice, CONNECT)
    assert time.monotonic() - begin < AT_ONCE


def test_who_has_died_is_not_waited_for():
    members = [Member(0), Member(0)]
    quorum = quorum_of(members, (1, 1))
    begin = time.monotonic()
    members[1].notice.close()
    with pytest.raises(LostError, match='b has died'):
        quorum.meet(members[0].notice, CONNECT)
    assert time.monotonic() - begin < AT_ONCE


def test_who_may_still_come_is_waited_for():
    members = [Member(0), Member(6)]
    quorum = quorum_of(members, (3, 7))
    with pytest.raises(LostError, match=r'b did not come to the quorum in 0\.5 s'):
        quorum.meet(members[0].notice, 0.5)
    members[0].notice.given_up = 3  # as its engine does then
    with pytest.raises(LostError, match='a asks for another quorum'):
        quorum.meet(members[1].notice, CONNECT)


def test_who_is_stopped_may_still_come():
    """It answers to no connection, which the kernel has made, and is not taken for dead."""
    members = [Member(0), Member(0)]
    quorum = quorum_of(members, (1, 1))
    with socket.create_server(('127.0.0.1', 0)) as silent:
        stopped = f'127.0.0.1:{silent.getsockname()[1]}'
        quorum = quorum._replace(notices=(quorum.notices[0], stopped))
        with pytest.raises(LostError, match=r'b did not come to the quorum in 0\.5 s'):
            quorum.meet(members[0].notice, 0.5)


@pytest.mark.parametrize('gap', [0.0, 0.1, 0.2])
def test_members_that_come_meet(gap):
    quorum = quorum_of(members := [Member(0) for _ in range(3)], (1, 1, 1))
    failures = []

    def meet(member):
        try:
            quorum.meet(member.notice, CONNECT)
        except LostError as error:
            failures.append(error)

    threads = [threading.Thread(target=meet, args=(member,)) for member in members]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
        time.sleep(gap)
    for thread in threads:
        thread.join(CONNECT)
    assert not failures and not any(thread.is_alive() for thread in threads)
    assert time.monotonic() - begin < AT_ONCE


def test_who_met_and_has_left_is_not_taken_for_present():
    """a met b, which was there before c; then b asks anew, so that c must not wait for it."""
    members = [Member(0) for _ in range(3)]
    quorum = quorum_of(members, (1, 1, 1))
    for member in members[:2]:
        member.notice.quorum = quorum.key
    members[1].notice.given_up = 1
    with pytest.raises(LostError, match='b asks for another quorum'):
        quorum.meet(members[2].notice, CONNECT)


def test_a_question_that_ends_as_the_quorum_is_made_holds_up_nobody(lighthouse):
    """Its registration stays with the lighthouse, and the worker asks anew."""
    seconds = {}
    end = threading.Barrier(3)

    def work(worker):
        worker.until(lambda: worker.engine.size == 2)
        together.wait(60)
        assert asked.wait(60)
        begin = time.monotonic()
        poll_until_all_are_there(worker)  # the answer has a's old question: nobody asks in between
        seconds[worker.name] = time.monotonic() - begin
        end.wait(60)

    def join(worker):
        ask = worker.engine.lighthouse.ask

        def lapse(patience):
            worker.engine.lighthouse.ask = ask
            client = worker.engine.lighthouse
            with contextlib.suppress(UnreachableError):
                give_up, client.give_up = client.give_up, lambda question: None
                ask(0.5)
            client.give_up = give_up
            asked.set()
            assert wait_for_a_quorum_with(worker, workers[0])
            client.give_up(client._questions)
            raise UnreachableError('the time is over')

        together.wait(60)
        worker.engine.lighthouse.ask = lapse
        poll_until_all_are_there(worker)
        end.wait(60)

    asked, together = threading.Event(), threading.Barrier(3)
    workers = [Worker(name, lighthouse, dgc.dense, work, start_workers=2) for name in 'bc']
    workers.append(Worker('a', lighthouse, dgc.dense, join))  # the first one: the host of the store
    finish(*workers)
    assert max(seconds.values()) < AT_ONCE


def poll_until_all_are_there(worker) -> None:
    """Take in others, as between two steps, until there are three."""
    worker.optimizer.begin()
    while worker.engine.size < 3:
        worker.engine.poll()
        worker.optimizer.begin()


def wait_for_a_quorum_with(worker, other) -> bool:
    """Wait until ``other`` has an answer of which ``worker`` is a member."""
    deadline = time.monotonic() + 30
    while worker.engine.worker not in other.engine.members:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_member_that_leaves_a_quorum_is_not_waited_for(lighthouse):
    """The first one sees that another one has died, and asks anew; the others saw it alive."""
    seconds = {}
    end = threading.Barrier(3)

    def work(worker):
        engine = worker.engine
        worker.until(lambda: engine.size == 2)
        if worker.name == 'a':
            form = engine._form

            def refuse(quorum, place):
                engine._form = form
                raise LostError('c has died')

            engine._form = refuse
        both.wait(60)
        begin = time.monotonic()
        poll_until_all_are_there(worker)
        seconds[worker.name] = time.monotonic() - begin
        end.wait(60)

    def join(worker):
        both.wait(60)
        poll_until_all_are_there(worker)
        end.wait(60)

    both = threading.Barrier(3)
    workers = [Worker(name, lighthouse, dgc.dense, work, start_workers=2) for name in 'ab']
    workers.append(Worker('c', lighthouse, dgc.dense, join))
    finish(*workers)
    assert max(seconds.values()) < AT_ONCE


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
