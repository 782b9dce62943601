"""The line of progress, in a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace

import pytest
import tqdm

from utils import terminal
from utils.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A second passes at each look at the clock."""
    now = iter(range(10**6))
    monkeypatch.setattr(terminal.time, 'monotonic', lambda: next(now))
    monkeypatch.setattr(tqdm.std, 'time', lambda: next(now))


def visible(text: str) -> str:
    """What a terminal shows of one line."""
    cells: list[str] = []
    for part in text.split('\r'):
        cells[: len(part)] = part
    return ''.join(cells).rstrip()


def test_a_terminal_shows_one_line_that_is_gone_at_the_end(clock):
    stream = Terminal()
    seen = [visible(stream.getvalue()) for _ in terminal.shown('abc', lambda: 'now', stream)]
    assert seen[1:] == ['now', 'now']
    assert not visible(stream.getvalue())
    assert '\n' not in stream.getvalue()
    assert not terminal.standing


def test_a_file_gets_whole_lines_and_few_of_them(clock):
    stream = io.StringIO()
    list(terminal.shown(range(50), lambda: 'now', stream))
    assert stream.getvalue() == 'now\n' * 2  # in 50 s: every 20 s


def test_what_is_printed_meanwhile_begins_at_the_left(clock):
    stream = Terminal()
    for item in terminal.shown(range(2), lambda: 'now', stream):
        if item:
            record = logging.LogRecord('x', logging.WARNING, '', 0, 'warning', (), None)
            assert visible(stream.getvalue()) == 'now'
            assert terminal.Erases().filter(record)
            assert not visible(stream.getvalue())
            assert stream.getvalue().endswith('\r')


def test_a_line_is_cut_to_the_width_of_the_terminal(clock, monkeypatch):
    monkeypatch.setenv('COLUMNS', '10')
    stream = Terminal()
    list(terminal.shown('ab', lambda: 'x' * 50, stream))
    assert 'x' * 9 in stream.getvalue() and 'x' * 10 not in stream.getvalue()


@pytest.mark.parametrize('is_terminal', [True, False])
def test_a_stream_that_is_gone_does_not_stop_training(clock, is_terminal):
    stream = io.StringIO()
    stream.close()
    gone = SimpleNamespace(
        isatty=lambda: is_terminal, write=stream.write, flush=stream.flush, encoding='utf-8'
    )
    assert list(terminal.shown(range(50), lambda: 'now', gone)) == [*range(50)]


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [(0.4, '0 s'), (59.7, '1 min 0 s'), (185, '3 min 5 s'), (7800, '2 h 10 min')],
)
def test_durations(seconds, text):
    assert terminal.duration(seconds) == text


@pytest.mark.parametrize(('limit', 'left'), [(160, 55), (61, 5.5), (50, 0), (40, 0)])
def test_the_line_has_loss_speed_density_and_time_left(monkeypatch, limit, left):
    """Of the steps that are trained, where they are limited."""
    now = [100.0]
    monkeypatch.setattr(terminal.time, 'monotonic', lambda: now[0])
    progress = SimpleNamespace(sent_elements=7, elements=10)
    parts = SimpleNamespace(
        optimizer=SimpleNamespace(progress=progress),
        samples_per_step=32,
        loaders={'train': range(40)},
        steps=lambda epochs: min(40 * epochs, limit),
    )
    meters = SimpleNamespace(step=0, losses=SimpleNamespace(latest=0.53124))
    line = ProgressLine(parts, meters, epoch=1, epochs=4)
    now[0], meters.step = 105.0, 10  # 2 steps a second; without a limit 110 of 3 × 40 are left
    progress.sent_elements, progress.elements = 8, 1010
    expected = f'epoch 1   25 %  loss 0.5312  64 samples/s  density 0.1 %  {left:.0f} s left'
    assert str(line) == expected
