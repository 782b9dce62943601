"""One worker of bench.exchange: `LAUNCHER python -m bench.exchange_worker SPEC`."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import dgc
from dgc.codec import Codec
from dgc.exchanges import Bruck, Hierarchical, OkTopK, SparDL
from tools.harness.algorithms import exchanges
from tools.harness.exchange_probe import ExchangeProbe, Step, probe_spec
from tools.harness.spec import write_json

CODEC = Codec('fp32', 'int32')
WARMUP = 1  # steps before the first that counts, in which connections are made and regions found


class UnfitError(Exception):
    """The exchange cannot serve this number of workers."""


@dataclass(frozen=True)
class Case:
    """A bucket of ``numel`` elements, of which ``k`` are sent in each of ``steps`` steps."""

    numel: int
    k: int
    steps: int


def measure(
    name: str, case: Case, engine: dgc.Engine, clock: Callable[[], float], codec: Codec = CODEC
) -> list[Step]:
    """This worker's steps of one exchange, without the warm-up.

    Args:
        name: of the exchange.
        case: what is exchanged.
        engine: of this worker.
        clock: seconds since any moment.
        codec: encodes the messages.

    Raises:
        UnfitError: the exchange cannot serve this number of workers; on all of them.
    """
    composition = replace(exchanges()[name](), codec=codec)
    try:
        probe = ExchangeProbe(composition, case.numel, case.k, engine, clock)
    except ValueError as error:
        raise UnfitError(str(error)) from error
    return [probe.step() for _ in range(WARMUP + case.steps)][WARMUP:]


def summarize(ranks: Sequence[Sequence[Step]]) -> dict[str, float]:
    """The figures of a row, from the steps of all workers, by rank.

    Returns:
        'ms': of the slowest worker, the median over the steps; 'messages' and 'bytes' per step: of
        the worker that sends most.
    """
    slowest = [max(step.seconds for step in together) for together in zip(*ranks, strict=True)]
    sent, messages = max(
        (statistics.mean(s.sent for s in steps), statistics.mean(s.messages for s in steps))
        for steps in ranks
    )
    return {'ms': 1e3 * statistics.median(slowest), 'messages': messages, 'bytes': sent}


def closed_form(name: str, case: Case, workers: int) -> float:
    """Bytes that the busiest worker sends per step, by the exchange's closed form."""
    exchange, spec = exchanges()[name]().exchange, probe_spec(case.numel, case.k)
    inside = exchange.bytes_inside(case.numel) if isinstance(exchange, Hierarchical) else 0
    return exchange.bytes_sent(spec, case.k, CODEC, workers) + inside


def is_upper_bound(name: str) -> bool:
    """Whether the closed form is an upper bound: how much is sent depends on the data."""
    exchange = exchanges()[name]().exchange
    bruck = isinstance(exchange, SparDL) and isinstance(exchange.gather, Bruck)
    return bruck or isinstance(exchange, OkTopK)


def gather(steps: Sequence[Step], engine: dgc.Engine) -> list[list[Step]]:
    """The steps of every worker, by rank. A collective."""
    numbers = torch.tensor(steps, dtype=torch.float64).view(-1)
    table = engine.all_gather(numbers).view(engine.size, -1, len(Step._fields))
    return [[Step(s, int(m), int(b)) for s, m, b in rank] for rank in table.tolist()]


def main(path: str) -> None:
    """Measure what the specification at ``path`` asks for; rank 0 answers after every exchange."""
    spec = json.loads(Path(path).read_text())
    case, engine = Case(**spec['case']), dgc.create()
    measured: dict[str, dict[str, float]] = {}
    unfit: dict[str, str] = {}
    answer: dict[str, Any] = {'measured': measured, 'unfit': unfit}
    for name in spec['exchanges']:
        try:
            steps = measure(name, case, engine, time.perf_counter)
            measured[name] = summarize(gather(steps, engine))
        except UnfitError as error:
            unfit[name] = str(error)
        if engine.rank == 0:
            write_json(Path(spec['answer']), answer)
    engine.barrier()
    engine.close()


if __name__ == '__main__':
    main(sys.argv[1])
