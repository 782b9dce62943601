"""What a run under faults does, seen from outside: a line for each step, with its loss.

    1764400000.123 0 4711 0x1.26bp+1 7 3 1    time, rank, process, loss, first targets

The loss names the step, since a run without faults has made the same one: `Reference.steps`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.digits import DigitsCNN, digits_cnn

PATH = 'FAULTS_TRACE'  # the environment variable that names the file
RANKS = ('RANK', 'HOROVOD_RANK')  # environment variables of launchers
TARGETS = 8  # in a line


class Traced(nn.CrossEntropyLoss):
    """The cross entropy, which appends a line to the trace for each batch."""

    def __init__(self) -> None:
        super().__init__()
        rank = next((os.environ[name] for name in RANKS if name in os.environ), '0')
        self._start = f'{rank} {os.getpid()}'
        self._file = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of a batch, and note it."""
        loss = super().forward(outputs, targets)
        words = ' '.join(map(str, targets[:TARGETS].tolist()))
        line = f'{time.time():.3f} {self._start} {float(loss).hex()} {words}\n'
        os.write(self._file, line.encode())
        return loss


def ballasted(ballast: int = 0) -> DigitsCNN:
    """The network of the digits, with a buffer of so many bytes."""
    model = digits_cnn()
    model.register_buffer('ballast', torch.zeros(ballast, dtype=torch.uint8))
    return model


class Step(NamedTuple):
    """A line of the trace.

    Attributes:
        time: In seconds since 1970.
        rank: That made the step.
        pid: Its process.
        key: Loss and targets, by which the step is known.
    """

    time: float
    rank: int
    pid: int
    key: str


def read(path: Path) -> list[Step]:
    """The complete lines of a trace; none where there is no file yet."""
    lines = path.read_text().split('\n')[:-1] if path.is_file() else []
    words = (line.split(' ', 3) for line in lines)
    return [Step(float(when), int(rank), int(pid), key) for when, rank, pid, key in words]


def steps_again(trace: Sequence[Step], reference: Sequence[Step], fault: float) -> int | None:
    """The number of steps of rank 0 that were begun before a fault and again after it.

    Args:
        trace: Of the run with the fault.
        reference: Of a run without.
        fault: When it was, in seconds since 1970.

    Returns:
        The number; None where the run has not gone on, or had not begun.

    Raises:
        LookupError: The undisturbed run has made no such step.
    """
    numbers = {step.key: n for n, step in enumerate(s for s in reference if s.rank == 0)}
    ours = [step for step in trace if step.rank == 0]
    before = [step for step in ours if step.time <= fault]
    gone = {step.pid for step in before}
    after = [step for step in ours if step.time > fault and step.pid not in gone]
    if not before or not after:
        return None
    # The last step of the processes that ended by the fault, which a signal lets finish theirs.
    last = [step for step in ours if step.pid == before[-1].pid][-1]
    return numbers[last.key] - numbers[after[0].key] + 1
