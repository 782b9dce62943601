"""Measuring rows inside the workers: a few steps of each in turn, round after round.

Other load on the machine then affects all rows alike. All ranks carry out everything here in the
same order, and decide how to go on from values that all of them have gathered.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from bench.rows import Row, Trained
from dgc import Engine
from dgc.profile import Profile, profile
from tools.harness.machine import bytes_sent
from tools.harness.workloads import Batch, loss

LEAST_STEPS = 2
PROFILED = 5  # steps that timed planners profile
REASON = 300  # bytes of the reason why a row failed


class Sample(NamedTuple):
    """Consecutive steps of one row. Every number is per step.

    ms: of the slowest rank, from a barrier on.
    cpu: processor time in ms, of all threads; this and all that follow are means over the ranks.
    kernel, codec: bytes sent, by the kernel's counter and by our own.
    compress, communicate, wait: ms, as Progress counts them.
    NaN for what is unknown.
    """

    ms: float
    cpu: float
    kernel: float
    codec: float
    compress: float
    communicate: float
    wait: float


class Plan(NamedTuple):
    """In how many rounds a row has a turn, and how many steps it makes in each."""

    rounds: int
    steps: int


def plan(step_seconds: float, seconds: float, rounds: int, steps: int) -> Plan:
    """``rounds`` of ``steps``, or as many as fit into ``seconds``, but at least two steps."""
    affordable = math.floor(seconds / max(step_seconds, 1e-9))
    total = max(min(affordable, rounds * steps), LEAST_STEPS)
    turns = min(rounds, total)
    return Plan(turns, total // turns)


def sent_by_kernel(interface: str) -> float:
    """Bytes that an interface of this process's own network has sent; NaN for ''.

    Raises:
        ValueError: there is no such interface.
    """
    if not interface:
        return math.nan
    counters = bytes_sent()
    if interface not in counters:
        raise ValueError(f'there is no interface {interface!r}')
    return float(counters[interface])


@dataclass
class Contender:
    """A row that is being measured.

    trained: its network and optimizer, once they are made.
    error: why it cannot be measured; '' if it can.
    """

    row: Row
    trained: Trained = field(init=False)
    plan: Plan = field(default=Plan(0, 0))
    samples: list[Sample] = field(default_factory=list)
    error: str = ''

    @property
    def buckets(self) -> dict[str, Any] | None:
        """The saved plan of a row of ours; None before it is made, and for other rows."""
        trained = getattr(self, 'trained', None)
        return None if trained is None or trained.ours is None else trained.ours.plan.to_json()


class Track:
    """What all contenders share: the engine, the batches, and the counters.

    Args:
        engine: of this worker.
        batches: used in turn.
        interface: whose bytes the kernel counts, see :func:`sent_by_kernel`.
    """

    def __init__(self, engine: Engine, batches: list[Batch], interface: str = '') -> None:
        self.engine = engine
        self._batches: Iterator[Batch] = itertools.cycle(batches)
        self._interface = interface

    def run(self, trained: Trained, steps: int) -> Sample:
        """Make some steps, on all ranks together."""
        self.engine.barrier()
        before = self._counters(trained)
        start = time.perf_counter()
        for _ in range(steps):
            trained.optimizer.zero_grad()
            batch = next(self._batches)
            loss(trained.network(batch.inputs), batch.targets).backward()
            trained.optimizer.step()
        milliseconds = 1e3 * (time.perf_counter() - start)
        self.engine.barrier()  # count what other ranks have yet to be sent, too
        counted = self._counters(trained) - before
        own = torch.cat([torch.tensor([milliseconds], dtype=torch.float64), counted]) / steps
        gathered = self.engine.all_gather(own)  # [P, 7]
        return Sample(float(gathered[:, 0].max()), *gathered[:, 1:].mean(0).tolist())

    def profile(self, network: nn.Module) -> Profile:
        """Measure when the gradients of a network are complete within a step."""

        def closure() -> torch.Tensor:
            batch = next(self._batches)
            return loss(network(batch.inputs), batch.targets)

        return profile(network, closure, PROFILED)

    def _counters(self, trained: Trained) -> torch.Tensor:
        """The fields of a sample after the first, counted since the start: [6]."""
        ours = [math.nan] * 4
        if trained.ours is not None:
            progress = trained.ours.reducer.progress
            seconds = (progress.compress, progress.communicate, progress.wait)
            ours = [progress.sent, *(1e3 * each for each in seconds)]
        counted = [1e3 * time.process_time(), sent_by_kernel(self._interface), *ours]
        return torch.tensor(counted, dtype=torch.float64)

    def attempt(self, contender: Contender, job: Callable[[], None]) -> None:
        """Call ``job()``; if it fails on any rank, set the contender's error on all ranks."""
        reason = ''
        try:
            job()
        except Exception as error:
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        contender.error = next(filter(None, self._gather_text(reason)), '')

    def _gather_text(self, text: str) -> list[str]:
        """The texts of all ranks, each cut to REASON bytes."""
        padded = text.encode()[:REASON].ljust(REASON, b'\0')
        gathered = self.engine.all_gather(torch.frombuffer(bytearray(padded), dtype=torch.uint8))
        return [bytes(row.tolist()).rstrip(b'\0').decode(errors='replace') for row in gathered]
