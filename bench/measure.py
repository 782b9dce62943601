"""Measuring rows inside the workers: a few steps of one, a few of the next, round after round.

So whatever else this machine does hits all rows alike. Everything here is carried out by all ranks
in the same order, and whatever decides how it goes on is computed from what all have gathered.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from bench.rows import Row, Trained
from bench.workloads import Batch, loss
from dgc import Engine
from dgc.profile import Profile, profile

LEAST_STEPS = 2
PROFILED = 5  # steps, for those that plan by times
REASON = 300  # bytes of the reason why a row failed


class Sample(NamedTuple):
    """Some steps of one row one after another; every number is for one step.

    ms: of the rank that took longest, from a barrier on.
    cpu: processor time, ms, of all of a rank's threads; like all that follow, mean over the ranks.
    kernel, codec: bytes sent, by the kernel's counter and by our own.
    compress, communicate, wait: ms, as Progress counts them.
    NaN for what cannot be told.
    """

    ms: float
    cpu: float
    kernel: float
    codec: float
    compress: float
    communicate: float
    wait: float


class Plan(NamedTuple):
    """How often a row has its turn, and how many steps it makes then."""

    rounds: int
    steps: int


def plan(step_seconds: float, seconds: float, rounds: int, steps: int) -> Plan:
    """``rounds`` of ``steps``, or what fits into ``seconds``, but at least two steps."""
    affordable = math.floor(seconds / max(step_seconds, 1e-9))
    total = max(min(affordable, rounds * steps), LEAST_STEPS)
    turns = min(rounds, total)
    return Plan(turns, total // turns)


def sent_by_kernel(interface: str) -> float:
    """Bytes that an interface of this process's own network has sent; NaN without one."""
    if not interface:
        return math.nan
    for line in Path('/proc/self/net/dev').read_text().splitlines():
        name, _, counters = line.partition(':')
        if name.strip() == interface:
            return float(counters.split()[8])  # after eight of what was received
    raise ValueError(f'there is no interface {interface!r}')


@dataclass
class Contender:
    """A row that is being measured. trained: once it is made; error: why it cannot be measured."""

    row: Row
    trained: Trained = field(init=False)
    plan: Plan = field(default=Plan(0, 0))
    samples: list[Sample] = field(default_factory=list)
    error: str = ''

    @property
    def buckets(self) -> dict[str, Any] | None:
        """How a row of ours divides the network, as a saved plan; None before it is made."""
        trained = getattr(self, 'trained', None)
        return None if trained is None or trained.ours is None else trained.ours.plan.to_json()


class Track:
    """Where the contenders run: one engine, and batches that they all share.

    interface: whose bytes the kernel counts, see :func:`sent_by_kernel`.
    """

    def __init__(self, engine: Engine, batches: list[Batch], interface: str = '') -> None:
        self.engine = engine
        self._batches: Iterator[Batch] = itertools.cycle(batches)
        self._interface = interface

    def run(self, trained: Trained, steps: int) -> Sample:
        """Some steps, on all ranks together."""
        self.engine.barrier()
        before = self._counters(trained)
        start = time.perf_counter()
        for _ in range(steps):
            trained.optimizer.zero_grad()
            batch = next(self._batches)
            loss(trained.network(batch.inputs), batch.targets).backward()
            trained.optimizer.step()
        milliseconds = 1e3 * (time.perf_counter() - start)
        self.engine.barrier()  # what others are still to be sent counts too
        counted = self._counters(trained) - before
        ours = torch.cat([torch.tensor([milliseconds], dtype=torch.float64), counted]) / steps
        everybody = self.engine.all_gather(ours)  # [P, 7]
        return Sample(float(everybody[:, 0].max()), *everybody[:, 1:].mean(0).tolist())

    def profile(self, network: nn.Module) -> Profile:
        """When its gradients appear in a step."""

        def closure() -> torch.Tensor:
            batch = next(self._batches)
            return loss(network(batch.inputs), batch.targets)

        return profile(network, closure, PROFILED)

    def _counters(self, trained: Trained) -> torch.Tensor:
        """What a sample holds after its first field, so far."""
        ours = [math.nan] * 4
        if trained.ours is not None:
            progress = trained.ours.reducer.progress
            seconds = (progress.compress, progress.communicate, progress.wait)
            ours = [progress.sent, *(1e3 * each for each in seconds)]
        counted = [1e3 * time.process_time(), sent_by_kernel(self._interface), *ours]
        return torch.tensor(counted, dtype=torch.float64)

    def attempt(self, contender: Contender, job: Callable[[], None]) -> None:
        """``job()``; where it fails on any rank, the contender has an error on all."""
        reason = ''
        try:
            job()
        except Exception as error:
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        contender.error = next(filter(None, self._everybodys(reason)), '')

    def _everybodys(self, text: str) -> list[str]:
        padded = text.encode()[:REASON].ljust(REASON, b'\0')
        gathered = self.engine.all_gather(torch.frombuffer(bytearray(padded), dtype=torch.uint8))
        return [bytes(row.tolist()).rstrip(b'\0').decode(errors='replace') for row in gathered]
