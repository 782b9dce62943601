"""A rank that stops is named, with the bucket that waits for it: failures row 14."""

from __future__ import annotations

import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from dgc_helpers import exact, parameters, train, wrap
from stalled_worker import STOPPED

import dgc
from dgc.engines import LocalEngine, Patience, StalledError
from dgc.engines import watch as watch_module
from dgc.engines.base import Wait
from dgc.engines.pace import CALLS, Pace
from dgc.engines.watch import Beat, Watch, named, parse


@pytest.mark.parametrize(
    'launcher',
    [
        pytest.param('torchrun', marks=pytest.mark.xdist_group('torchrun 3')),
        pytest.param(
            'horovodrun', marks=[pytest.mark.horovod, pytest.mark.xdist_group('horovodrun 3')]
        ),
    ],
)
def test_a_rank_that_stops_is_named_and_goes_on(launcher, worlds):
    """failures row 14, with real processes: SIGSTOP, a line, SIGCONT, and the run is complete."""
    results = worlds(launcher, 3).run('stalled_worker:pause', 4.0, seconds=60)
    assert all(finite for _, finite in results)
    lines = [line for lines, _ in results for line in lines]
    first = results[0][0][0]
    assert first.startswith('rank 0 has waited 4 s in ')
    assert ' of bucket ' in first
    assert f' for rank {STOPPED}, which does not answer: stopped' in first
    assert first.endswith('ends after 100 s (configs.engine.abort_seconds)')
    assert len(lines) <= 2  # and that the wait is over


class Ranks:
    """A channel to three other ranks, which are waiting, busy, stopped or away.

    Args:
        states: Of ranks 1, 2 and 3: a call in which a rank waits, 'busy' or 'stopped'.
    """

    host = 'the host of beats'
    expected = 0.1  # seconds, by the ranks that wait

    def __init__(self, *states: str) -> None:
        self.states = dict(enumerate(states, 1))
        self.beats = 0
        self.blocked = threading.Event()  # set: the channel answers
        self.blocked.set()

    def publish(self, text):
        self.blocked.wait(10)

    def read(self):
        self.beats += 1
        texts = {}
        for rank, state in self.states.items():
            if state == 'busy':
                texts[rank] = Beat(self.beats, -1.0, -1.0, '').dump()
            elif state == 'stopped':
                texts[rank] = Beat(1, -1.0, -1.0, '').dump()
            elif state != 'away':
                texts[rank] = Beat(self.beats, WARNING, self.expected, state).dump()
        return texts


WARNING = 1.0  # seconds; a beat is due every 67 ms, and missed after four times as long


def watched(channel, seconds, abort=100.0, rank=0, expected=0.1):
    """Watch a call that began now for some seconds; returns the errors it failed with."""
    errors, began = [], time.monotonic()

    def waiting():
        return Wait(7, 'all_gather of bucket conv', time.monotonic() - began, expected)

    watch = Watch(rank, 4, Patience(WARNING, abort), waiting, errors.append, channel)
    time.sleep(seconds)
    if channel is not None:
        channel.blocked.set()
    watch.stop()
    return errors


CALL = 'all_gather of bucket conv'


@pytest.mark.parametrize(
    ('states', 'expected'),
    [
        ((CALL, 'stopped', CALL), 'for rank 2, which does not answer: stopped'),
        ((CALL, 'away', 'stopped'), 'for ranks 2, 3, which does not answer'),
        ((CALL, CALL, 'busy'), 'for rank 3, which runs and has not come to this call'),
        (
            ('stopped', CALL, 'busy'),
            'for rank 1, which does not answer.*and for rank 3, which runs',
        ),
        ((CALL, 'barrier', CALL), 'for the network or a call that differs.*rank 2 in barrier'),
    ],
    ids=['stopped', 'several', 'busy', 'both', 'none'],
)
def test_the_ranks_that_are_waited_for_are_named(states, expected, caplog):
    """failures row 14."""
    watched(Ranks(*states), WARNING + 0.25)
    (line,) = caplog.messages
    start = r'rank 0 has waited \d s in all_gather of bucket conv '
    assert re.match(f'{start}{expected}', line), line


def test_the_line_is_repeated_every_two_times_as_long(caplog):
    """failures row 14: after 30 s, then every 60."""
    watched(Ranks(CALL, 'busy', CALL), 5 * WARNING + 0.2)
    assert len(caplog.messages) == 3


def test_one_rank_reports_for_all_that_wait(caplog):
    """failures row 14: the lowest one; here it is rank 1, beside our rank 2."""
    channel = Ranks(CALL, '', 'busy')
    channel.states[0] = 'stopped'
    watched(channel, WARNING + 0.25, rank=2)
    assert caplog.messages == []


def test_where_the_channel_itself_stops_its_host_is_named(caplog):
    """failures row 14: rank 0, which serves the store, may be the one that stops."""
    channel = Ranks(CALL, CALL, CALL)
    channel.blocked.clear()
    watched(channel, WARNING + 0.25, rank=1)
    (line,) = caplog.messages
    assert 'for a rank that is not known, since the host of beats does not answer' in line


def test_without_a_channel_every_rank_says_that_it_waits(caplog):
    """failures row 14: Horovod over MPI has none."""
    watched(None, WARNING + 0.25, rank=3)
    (line,) = caplog.messages
    assert line.startswith('rank 3 has waited 1 s in all_gather of bucket conv for a rank that')


def test_a_wait_ends_after_its_limit():
    """failures row 14: the rank that prints is the lowest that waits."""
    (error,) = watched(Ranks(CALL, 'stopped', CALL), 3 * WARNING, abort=2 * WARNING)
    assert isinstance(error, StalledError) and error.rank == 0
    assert 'for rank 2, which does not answer' in str(error)
    assert str(error).endswith('given up (configs.engine.abort_seconds)')


def test_calls_that_complete_are_not_reported(caplog):
    """failures row 14: each is shorter than the limit, all together are not."""
    calls = iter(range(10**6))
    errors = []
    wait = lambda: Wait(next(calls), CALL, WARNING / 2)  # noqa: E731
    watch = Watch(0, 4, Patience(WARNING, WARNING), wait, errors.append, Ranks(CALL, CALL, CALL))
    time.sleep(2 * WARNING)
    watch.stop()
    assert caplog.messages == [] and errors == []


def test_a_rank_that_was_stopped_itself_does_not_count_that(monkeypatch, caplog):
    """failures row 14: Slurm stops all ranks of a job that it suspends."""
    clock, began = SimpleNamespace(skipped=0.0), time.monotonic()
    real = time.monotonic
    monkeypatch.setattr(watch_module.time, 'monotonic', lambda: real() + clock.skipped)
    errors, channel = [], Ranks(CALL, CALL, 'stopped')

    def waiting():
        return Wait(7, CALL, real() + clock.skipped - began)

    watch = Watch(0, 4, Patience(WARNING, 10.0), waiting, errors.append, channel)
    time.sleep(WARNING / 2)
    clock.skipped = 3600.0
    time.sleep(0.1)
    assert caplog.messages == []
    time.sleep(WARNING)
    watch.stop()
    assert errors == []
    (line,) = caplog.messages
    assert line.startswith(f'rank 0 has waited 1 s in {CALL} for rank 3, which does not')


@pytest.mark.parametrize('text', ['', 'x', '1', '1 2', '1 2 3', '1 x 3 y', '\ufffd 1 1 a'])
def test_a_beat_that_is_none_is_ignored(text):
    """What comes over the network is text, and may be anything."""
    assert parse(text) in (None, Beat(1, 2.0, 3.0, ''))


def test_a_beat_is_read_as_it_was_written():
    for wait in (None, Wait(7, CALL, 2.5, 0.125), Wait(8, CALL, 2.5)):
        assert parse(Beat.of(3, wait).dump()) == Beat.of(3, wait)


@pytest.mark.parametrize(
    ('expected', 'is_busy', 'limit'),
    [
        (None, False, 1800),  # before training: data are prepared, kernels compiled
        (None, True, 1800),
        (0.2, False, 120),  # 4 times warning_seconds
        (0.2, True, 600),  # 20 times
        (45.0, False, 180),  # 4 times the slowest so far
        (200.0, True, 800),
        (7200.0, False, 1800),
    ],
)
def test_the_limit_follows_from_what_was_measured(expected, is_busy, limit):
    """failures row 14."""
    assert Patience(30.0).limit(expected, is_busy) == limit
    assert Patience(30.0, 77.0).limit(expected, is_busy) == 77
    assert Patience(30.0).library_seconds > limit


@pytest.mark.parametrize(
    ('states', 'of_others', 'seconds'),
    [
        ((CALL, 'stopped', CALL), 0.1, 1.1),
        ((CALL, CALL, CALL), 0.1, 1.1),
        ((CALL, 'busy', CALL), 0.1, 1.6),
        ((CALL, 'stopped', CALL), 0.35, 1.4),  # the rank that expects most decides
        ((CALL, 'stopped', CALL), -1.0, None),  # one that has not measured anything
    ],
    ids=['stopped', 'all wait', 'busy', 'slow', 'start'],
)
def test_without_a_setting_a_wait_ends_after_the_limit_of_its_kind(
    states, of_others, seconds, monkeypatch
):
    """failures row 14: with 1.1 and 1.6 s in the place of 120 and 600 s."""
    monkeypatch.setattr(watch_module, 'SILENT', 1.1)
    monkeypatch.setattr(watch_module, 'BUSY', 1.6)
    channel = Ranks(*states)
    channel.expected = of_others
    began = time.monotonic()
    errors = watched(channel, (seconds or 1.6) + 0.3, abort=None)
    assert len(errors) == (seconds is not None)
    assert time.monotonic() - began > (seconds or 0)


def test_the_longest_call_and_the_longest_pause_are_expected():
    pace = Pace()
    for call in range(CALLS):
        assert pace.expect(sent=1000, seconds=1.0, nbytes=8) is None
        pace.begin(call + 0.0)
        pace.end(call + 0.0, call + 0.25, 'conv')
    assert pace.expect(1000, 1.0, 8) == 0.75
    pace.begin(CALLS + 4.25)
    assert pace.expect(1000, 1.0, 8) == 5.0
    pace.end(CALLS + 4.25, CALLS + 13.25, '')
    assert pace.expect(1000, 1.0, 8) == 9.0
    assert pace.expect(1000, 1.0, 20_000) == 20.0  # at the rate so far


def test_a_long_list_of_ranks_is_cut():
    assert named(range(61)) == 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 53 more'


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'warning_seconds': 0}, 'engine.warning_seconds must be above 0, got 0'),
        ({'abort_seconds': -1.0}, 'engine.abort_seconds must be above 0, got -1.0'),
        ({'abort_seconds': 20}, 'abort_seconds = 20 is below configs.engine.warning_seconds = 30'),
        ({'warning_seconds': '30'}, "warning_seconds must be a number of seconds, got '30'"),
        ({'abort_seconds': float('nan')}, 'abort_seconds must be above 0, got nan'),
        ({'abort_seconds': float('inf')}, 'abort_seconds must be at most 1e[+]07 seconds, got inf'),
        ({'warning_seconds': 10**9}, 'warning_seconds must be at most 1e[+]07 seconds, got 1000'),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(dgc.EngineError, match=message):
        Patience(**settings)


def test_the_library_can_be_given_the_longest_settings():
    for settings in ({'abort_seconds': 1e7}, {'warning_seconds': 1e7}):
        assert 1e7 < Patience(**settings).library_seconds < 2**31


class Stuck(LocalEngine):
    """An engine of which a collective waits until it is released."""

    has_thread = True

    def __init__(self):
        super().__init__()
        self.release = threading.Event()
        self.stuck = False

    def _all_gather(self, tensor):
        if self.stuck:
            self.release.wait(30)
        return super()._all_gather(tensor)


def test_a_call_that_waits_is_known_with_its_bucket():
    engine = Stuck()
    assert engine.waiting() is None
    named_parameters = parameters()
    optimizer = wrap(named_parameters, exact(), engine)
    train(optimizer, named_parameters, 1)
    engine.stuck = True
    thread = threading.Thread(target=train, args=(optimizer, named_parameters, 1))
    thread.start()
    while (wait := engine.waiting()) is None or wait.seconds < 0.1:
        time.sleep(0.01)
    engine.release.set()
    thread.join()
    name = optimizer.buckets[0].name
    assert wait.what == f'all_gather of bucket {name}'
    assert engine.waiting() is None


def test_a_wait_that_is_given_up_ends_the_step_with_the_reason():
    """failures row 14: the training loop gets the error though the library still waits."""
    engine = Stuck()
    named_parameters = parameters()
    optimizer = wrap(named_parameters, exact(), engine)
    engine.stuck = True
    timer = threading.Timer(0.2, engine.fail, [StalledError('rank 1 is stopped', 0)])
    timer.start()
    with pytest.raises(StalledError, match='rank 1 is stopped'):
        train(optimizer, named_parameters, 1)
    with pytest.raises(dgc.EngineError, match='the engine has failed: rank 1 is stopped'):
        engine.all_reduce(torch.ones(1))
    engine.release.set()  # a result that comes too late disturbs nothing
    timer.join()
    engine._thread._thread.join(timeout=0.2)
    assert engine._thread._thread.is_alive()
