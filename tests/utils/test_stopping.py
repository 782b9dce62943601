"""Signals, and the steps after which the ranks agree on what to do about them."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch

import dgc
from utils.training import stopping
from utils.training.stopping import Agreement, StopSignals


class EndedError(Exception):
    """In the place of the end of the process."""


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock that stands still, and ``end_at_once`` that raises."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(stopping, 'time', SimpleNamespace(monotonic=lambda: now.seconds))

    def ended(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(stopping, 'end_at_once', ended)
    return now


@pytest.mark.parametrize(('number', 'code'), [(15, 143), (2, 130), (10, 143)])
@pytest.mark.usefixtures('clock')
def test_a_signal_before_training_ends_the_process_at_once(number, code, capfd):
    with StopSignals(0), pytest.raises(EndedError, match=str(code)):
        os.kill(os.getpid(), number)
    name = signal.Signals(number).name
    assert f'train.py: ended at once by {name}: --resume continues' in capfd.readouterr().err


def test_a_second_signal_ends_the_process_and_copies_of_the_first_do_not(clock):
    with StopSignals(1) as signals:
        signals.waits = True
        os.kill(os.getpid(), signal.SIGUSR1)
        clock.seconds += 0.9
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGUSR1
        clock.seconds += 0.2
        with pytest.raises(EndedError, match='130'):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_handled_signals_before_does_so_again():
    before = [signal.getsignal(number) for number in stopping.SIGNALS]
    with StopSignals(0):
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == before


def agreements(seconds: list[list[float]], monkeypatch) -> list[list[int]]:
    """The steps after which each rank agrees; ``seconds`` of each step of each rank."""
    clocks = threading.local()  # simulated ranks are threads
    monkeypatch.setattr(stopping, 'time', SimpleNamespace(monotonic=lambda: clocks.now))

    def worker(engine: dgc.Engine) -> list[int]:
        clocks.now = 0.0
        agreement, found = Agreement(engine, torch.device('cpu')), []
        for step, duration in enumerate(seconds[engine.rank]):
            clocks.now += duration
            if agreement.is_due():
                assert agreement.sums([1, engine.rank]) == [3, 0 + 1 + 2]
                found.append(step)
        return found

    return dgc.simulate(3, worker)


@pytest.mark.parametrize(('typical', 'period'), [(5.0, 1), (0.4, 2), (0.1, 10), (0.001, 256)])
def test_ranks_agree_after_the_same_steps_about_once_in_a_second(monkeypatch, typical, period):
    steps = [[typical * (0.7 + 0.3 * rank) for _ in range(1200)] for rank in range(3)]
    first, *others = agreements(steps, monkeypatch)
    assert all(other == first for other in others)
    assert first[0] == 0  # the first step of a run
    gaps = {later - earlier for earlier, later in itertools.pairwise(first)}
    assert gaps <= {period, period - 1, period + 1}


def test_they_agree_more_often_once_steps_take_longer(monkeypatch):
    steps = [[0.01] * 300 + [1.0] * 300 for _ in range(3)]
    first, *_ = agreements(steps, monkeypatch)
    assert len([step for step in first if step > 400]) > 190
