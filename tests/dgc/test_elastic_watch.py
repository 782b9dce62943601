"""Workers that an elastic one waits for are named, with the bucket, before they are dropped."""

from __future__ import annotations

import re
import socket
import time

import pytest

from dgc.engines import notice
from dgc.engines.elastic_watch import ElasticWatch, GroupCall
from dgc.engines.notice import Notice
from dgc.engines.watch import Beat

SETTING = 'configs.elastic.drop_seconds'


@pytest.fixture
def stopped(monkeypatch):
    """The address of a process that is stopped: it accepts connections, and answers nothing."""
    monkeypatch.setattr(notice, 'READ', 0.3)
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        yield f'127.0.0.1:{silent.getsockname()[1]}'


def reported(caplog, seconds, limit, *notices, runs=(), within=3.0) -> str:
    """What is logged of a call that has taken ``seconds`` so far; '' for nothing.

    Args:
        seconds, limit: Of the call.
        notices: Of the ranks above 0, as ``host:port``.
        runs: Notices of workers that run, and are in no call.
        within: Seconds until the end.
    """
    call = GroupCall(1, 'all_reduce of bucket conv1', time.monotonic() - seconds, limit, SETTING)
    calls: list[GroupCall | None] = [None]  # of the group, once it is known
    watch = ElasticWatch(Notice('127.0.0.1'), lambda: calls[0], 30.0)
    watch.follow(0, ['w0', 'w1', 'w2'][: len(notices) + 1], ['', *notices])
    calls[0] = call
    deadline, number = time.monotonic() + within, 0
    while not caplog.messages and time.monotonic() < deadline:
        number += 1
        for each in runs:
            each.beat = Beat(number, -1.0, -1.0, '').dump()
        time.sleep(0.05)
    watch.stop()
    return '\n'.join(caplog.messages)


def test_who_is_stopped_is_named_with_the_bucket(caplog, stopped):
    text = reported(caplog, 31, 100, stopped)
    assert re.match(
        r'w0 \(rank 0\) has waited 3[1-4] s in all_reduce of bucket conv1 for w1 \(rank 1\), which '
        'does not answer: stopped',
        text,
    )
    assert text.endswith('; it is dropped after 100 s (configs.elastic.drop_seconds)')


def test_who_computes_is_told_from_who_is_stopped(caplog, stopped):
    busy = Notice('127.0.0.1')
    busy.beat = Beat(0, -1.0, -1.0, '').dump()
    text = reported(caplog, 31, 100, busy.address, stopped, runs=[busy])
    assert 'for w2 (rank 2), which does not answer' in text
    assert '; and for w1 (rank 1), which runs and has not come to this call' in text


def test_nobody_is_named_before_the_time(caplog, stopped):
    assert reported(caplog, 20, 100, stopped, within=1.0) == ''


def test_a_line_comes_before_a_drop_that_comes_early(caplog, stopped):
    assert 'dropped after 10 s' in reported(caplog, 5, 10, stopped)
