"""The exchanges, and one worker of them: `LAUNCHER python -m bench.exchange_worker SPEC`.

A new exchange is one line of EXCHANGES.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import Parameter

import dgc
from bench.spec import write_json
from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors import TopK
from dgc.exchanges import (
    AllGather,
    AllReduce,
    Bruck,
    ChunkAllReduce,
    Exchange,
    GTopK,
    GTopKDoubling,
    Hierarchical,
    OkTopK,
    SparDL,
)
from dgc.schedule import RatioSchedule
from dgc.sparse import Sparse

EXCHANGES: dict[str, Callable[[], Exchange]] = {
    'all-reduce': AllReduce,
    'all-gather': AllGather,
    'gtop-k': GTopK,
    'gtop-k doubling': GTopKDoubling,
    'spardl': SparDL,
    'spardl 4 teams': lambda: SparDL(teams=4),
    'spardl 4 teams bruck': lambda: SparDL(teams=4, gather=Bruck()),
    'ok-topk': OkTopK,
    'chunk': ChunkAllReduce,
    'hierarchical 2': lambda: Hierarchical(AllGather(), local_size=2),
}
CODEC = Codec('fp32', 'int32')
WARMUP = 1  # steps before any that counts: connections, and what an exchange finds out at first


class UnfitError(Exception):
    """The exchange cannot serve so many workers."""


@dataclass(frozen=True)
class Case:
    """What is exchanged: ``k`` of ``numel`` elements, in each of so many steps."""

    numel: int
    k: int
    steps: int


class Step(NamedTuple):
    """One exchange, of one worker. messages, sent: how many, and their bytes."""

    seconds: float
    messages: int
    sent: int


class Worker:
    """One worker of one exchange: its bucket, and random gradients.

    clock: seconds, from any start. Raises UnfitError, on all workers alike.
    """

    def __init__(
        self,
        name: str,
        case: Case,
        engine: dgc.Engine,
        clock: Callable[[], float],
        codec: Codec = CODEC,
    ) -> None:
        self.exchange = EXCHANGES[name]()
        try:
            self.exchange.check(engine)
        except ValueError as error:
            raise UnfitError(str(error)) from error
        self._case, self._engine, self._clock, self._codec = case, engine, clock, codec
        weight = Parameter(torch.empty(case.numel), requires_grad=False)
        self._bucket = Bucket([('weight', weight, {})], RatioSchedule(case.k / case.numel))
        self._bucket.ratio = (case.k - 0.5) / case.numel  # k, however the product is rounded
        self._draw = torch.Generator().manual_seed(engine.rank)

    def steps(self) -> list[Step]:
        """Those that count."""
        return [self.step() for _ in range(WARMUP + self._case.steps)][WARMUP:]

    def step(self) -> Step:
        """One exchange, of a new gradient; choosing what to send is no part of it, unless the
        exchange does that."""
        bucket, engine = self._bucket, self._engine
        bucket.gradient.normal_(generator=self._draw)
        engine.barrier()
        before, start = replace(engine.traffic), self._clock()
        self.exchange.prepare(bucket, engine, healthy=True)
        seconds = self._clock() - start
        message = self.select()
        engine.barrier()
        start = self._clock()
        self.exchange.sum(bucket, message, self._codec, engine)
        seconds += self._clock() - start
        after = engine.traffic
        return Step(seconds, after.messages - before.messages, after.sent - before.sent)

    def select(self) -> Sparse:
        """What the exchange is handed: all where it wants that, else the largest elements."""
        gradient = self._bucket.gradient
        if isinstance(self.exchange, AllReduce):
            return Sparse(gradient, None, self._bucket.numel)
        if self.exchange.selects:  # it may not change a memory, whose part this is
            return Sparse(gradient.clone(), None, self._bucket.numel)
        return TopK().compress(gradient, self._bucket.ratio)


def figures(ranks: Sequence[Sequence[Step]]) -> dict[str, float]:
    """Of all workers' steps: the slowest's milliseconds, medians over the steps; of the one that
    sends most, messages and bytes a step."""
    slowest = [max(step.seconds for step in together) for together in zip(*ranks, strict=True)]
    sent, messages = max(
        (statistics.mean(s.sent for s in steps), statistics.mean(s.messages for s in steps))
        for steps in ranks
    )
    return {'ms': 1e3 * statistics.median(slowest), 'messages': messages, 'bytes': sent}


def closed_form(name: str, case: Case, workers: int) -> float:
    """Bytes that the busiest of so many workers is to send in a step."""
    exchange = EXCHANGES[name]()
    inside = exchange.bytes_inside(case.numel) if isinstance(exchange, Hierarchical) else 0
    return exchange.bytes_sent(case.numel, case.k, CODEC, workers) + inside


def gather(steps: Sequence[Step], engine: dgc.Engine) -> list[list[Step]]:
    """Every worker's, by rank."""
    numbers = torch.tensor(steps, dtype=torch.float64).view(-1)
    table = engine.all_gather(numbers).view(engine.size, -1, len(Step._fields))
    return [[Step(s, int(m), int(b)) for s, m, b in rank] for rank in table.tolist()]


def main(path: str) -> None:
    """Measure what the spec at ``path`` asks for; rank 0 answers after every exchange."""
    spec = json.loads(Path(path).read_text())
    case, engine = Case(**spec['case']), dgc.create()
    measured: dict[str, dict[str, float]] = {}
    unfit: dict[str, str] = {}
    answer: dict[str, Any] = {'measured': measured, 'unfit': unfit}
    for name in spec['exchanges']:
        try:
            steps = Worker(name, case, engine, time.perf_counter).steps()
            measured[name] = figures(gather(steps, engine))
        except UnfitError as error:
            unfit[name] = str(error)
        if engine.rank == 0:
            write_json(Path(spec['answer']), answer)
    engine.barrier()
    engine.close()


if __name__ == '__main__':
    main(sys.argv[1])
