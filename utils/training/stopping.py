"""Signals that ask for the end of a run, and the agreement of the ranks on when to act on them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from dgc import Engine
from utils.cli import INTERRUPTED, TERMINATED, end_at_once

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
TOGETHER = 1.0  # seconds in which signals count as one: launchers pass on what all ranks got
BETWEEN = 1.0  # seconds between two agreements
MOST_STEPS = 256  # between two agreements, since the steps to come may be slower than those before


def exit_code(number: int) -> int:
    """The exit code after a signal: 130 for Ctrl-C, else 143."""
    return INTERRUPTED if number == signal.SIGINT else TERMINATED


class StopSignals:
    """Within the context, a first signal is noted while ``waits`` is set, and a second one ends the
    process at once; so does any signal while it is not set, such as before training.

    Signals reach a process's main thread only; in another thread the context does nothing.

    Args:
        rank: Of this process; rank 0 prints.

    Attributes:
        received: The first signal; 0 for none.
        waits: Whether the training loop will act on a signal.
    """

    def __init__(self, rank: int) -> None:
        self.received = 0
        self.waits = False
        self._rank = rank
        self._time = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received and now - self._time < TOGETHER:
            return
        if not self.waits or self.received:
            if self._rank == 0:
                name = signal.Signals(number).name
                text = f'ended at once by {name}: --resume continues from the last checkpoint'
                # Not print, in which the signal may have interrupted this thread.
                os.write(2, f'\ntrain.py: {text}, if there is one\n'.encode())
            end_at_once(exit_code(number))
        self.received, self._time = number, now


class Agreement:
    """Adds up what the ranks wish, about once in a second, so that all of them do the same.

    No rank may stop by itself, since the others would wait for it. One all-reduce of a few numbers
    carries the wishes, every N steps: N is computed from the duration of the steps, which the
    all-reduce sums too, so that it is the same on all ranks. One rank alone agrees in every step.

    Args:
        engine: Carries the wishes.
        device: Of the tensors that it carries.
    """

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine, self._device = engine, device
        self._steps, self._period = 0, 1
        self._start = time.monotonic()

    def is_due(self) -> bool:
        """Count a step; returns whether to call ``sums`` after it, as all ranks do then."""
        self._steps += 1
        return self._steps >= self._period or self._engine.size == 1

    def sums(self, wishes: Sequence[float]) -> list[float]:
        """Add up the ranks' wishes, small whole numbers. A collective."""
        if self._engine.size == 1:
            return list(wishes)
        seconds = time.monotonic() - self._start
        sent = torch.tensor([*wishes, seconds], dtype=torch.float32, device=self._device)
        *sums, seconds = self._engine.all_reduce(sent).tolist()
        mean = max(seconds / self._engine.size, 1e-6)
        self._period = min(max(int(self._steps * BETWEEN / mean), 1), MOST_STEPS)
        self._steps, self._start = 0, time.monotonic()
        return sums
