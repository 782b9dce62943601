"""Time and bytes of an exchange by itself: `python -m bench.exchange --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dgc
from bench.exchange_worker import (
    CODEC,
    Case,
    UnfitError,
    closed_form,
    is_upper_bound,
    summarize,
)
from bench.exchange_worker import measure as measure_exchange
from dgc.codec import Codec
from dgc.costmodel import Network
from dgc.engines import SimulatedEngine
from dgc.sparse import Sparse
from tools.cluster import parse_rate
from tools.harness.algorithms import canonical, exchanges
from tools.harness.cli import (
    Parser,
    check_folder,
    exit_on_signals,
    log,
    names,
    positive,
    refuse,
)
from tools.harness.exchange_probe import Step
from tools.harness.launch import LAUNCHERS, describe_status, run_workers, unavailable
from tools.harness.spec import run_with_spec, write_json

PROGRAM = 'bench.exchange'
WORKER = 'bench.exchange_worker'
NAMES = tuple(exchanges())
EXAMPLES = f"""\
examples: real processes on this machine, then a simulated network with up to 1,024 workers:
    python -m bench.exchange --workers 2 3 4 8 --json real.json
    python -m bench.exchange --simulate --json simulated.json --figure scaling.png

exchanges: {', '.join(NAMES)}
ms: per exchange, of the slowest worker, the median over the steps. messages, bytes: per step, of
the worker that sends most. closed form: the bytes expected; '!' if others were counted.
Exit status: 2 for invalid input, 1 if an exchange failed or sent other bytes than expected.
"""
ROUNDING = 2  # bytes, since an engine counts whole ones
CHECKED = 64  # number of workers up to which the closed forms are checked

Result = dict[str, Any]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM, 'Measure exchanges of one bucket, or simulate them on a network.', EXAMPLES
    )
    add = parser.add_argument
    count = partial(add, type=positive, metavar='N')
    count('--workers', nargs='+', help='numbers of workers (2 3 4 8; simulated: 2 4 8 … 1024)')
    add('--engine', choices=LAUNCHERS, default='torch', help='that carries the bytes (torch)')
    count('--numel', help='elements of the bucket (2^20; simulated: 2^18)')
    count('--k', help='elements that are sent (1024; simulated: 256)')
    count('--steps', help='steps that count (10; simulated: 1)')
    add('--only', metavar='NAME,...', default=','.join(NAMES),
        help='measure only these exchanges')  # fmt: skip
    add('--timeout', type=float, default=600.0, help='seconds for one set of workers (600)')
    add('--simulate', action='store_true', help='use the virtual clock of the simulated engine')
    add('--rates', nargs='+', default=['1gbit', '10gbit', '100gbit'], metavar='RATE',
        help='rates of simulated links (1gbit 10gbit 100gbit)')  # fmt: skip
    add('--latency', type=float, default=50.0, help='of simulated links, in µs (50)')
    add('--patience', type=float, default=900.0,
        help='leave out a simulation that would take more seconds than this (900)')  # fmt: skip
    add('--json', type=Path, metavar='FILE', help='write the rows to this file')
    add('--figure', type=Path, metavar='FILE', help='draw the simulated rows as a PNG')
    arguments = parser.parse_args(argv)
    try:
        complete(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def complete(arguments: argparse.Namespace) -> None:
    """Fill in defaults that depend on the engine. Raises ValueError for invalid arguments."""
    simulated = arguments.simulate
    powers = [2**power for power in range(1, 11)]
    arguments.workers = arguments.workers or (powers if simulated else [2, 3, 4, 8])
    numel = arguments.numel or (2**18 if simulated else 2**20)
    k = arguments.k or (256 if simulated else 1024)
    arguments.case = Case(numel, k, arguments.steps or (1 if simulated else 10))
    arguments.names = list(dict.fromkeys(map(canonical, names(arguments.only))))
    for name in arguments.names:
        if name not in NAMES:
            raise ValueError(f'--only: there is no exchange {name!r}: there are {", ".join(NAMES)}')
    if k > numel:
        raise ValueError(f'--k: there are only {numel} elements, not {k}')
    if arguments.figure is not None and not simulated:
        raise ValueError('--figure: only simulated rows are drawn: add --simulate')
    check_folder('--json', arguments.json)
    check_folder('--figure', arguments.figure)
    arguments.networks = {
        rate: Network.of(parse_rate(rate), 1e-6 * arguments.latency) for rate in arguments.rates
    }


def measure(arguments: argparse.Namespace) -> Iterator[Result]:
    """One row for each number of workers and exchange, measured in processes of this machine."""
    exit_on_signals()
    for workers in arguments.workers:
        answer, ended = launch(arguments, workers)
        for name in arguments.names:
            row = {'exchange': name, 'engine': arguments.engine, 'workers': workers}
            if name in answer['measured']:
                counted = answer['measured'][name]
                yield {**row, **counted, **expected(name, arguments.case, workers, counted)}
            elif name in answer['unfit']:
                log(f'{name} is left out with {workers} workers: {answer["unfit"][name]}')
            else:
                yield {**row, 'error': ended}


def launch(arguments: argparse.Namespace, workers: int) -> tuple[dict[str, Any], str]:
    """Run one set of workers; return their answer and a description of how they ended."""
    launcher = LAUNCHERS[arguments.engine]
    log(f'{launcher}, {workers} workers')
    nothing: dict[str, Any] = {'measured': {}, 'unfit': {}}
    if reason := unavailable(arguments.engine):
        return nothing, reason

    def start(folder: Path) -> int:
        return run_workers(launcher, workers, WORKER, folder, arguments.timeout)

    spec = {'case': asdict(arguments.case), 'exchanges': arguments.names}
    status, answer = run_with_spec(spec, start)
    return answer or nothing, describe_status(status)


def simulate(arguments: argparse.Namespace) -> Iterator[Result]:
    """One row for each exchange, number of workers and rate, on a virtual clock.

    Larger numbers of workers are excluded once a simulation would take longer than ``--patience``.
    Its time is extrapolated from the previous one by the square of the number of workers: with
    twice as many workers, each of them reads twice as many messages.
    """
    torch.set_num_threads(1)  # the workers take turns
    for name in arguments.names:
        took, before = 0.0, 1
        for workers in sorted(arguments.workers):
            if took * (workers / before) ** 2 > arguments.patience:
                log(f'{name} is left out from {workers} workers on: see --patience')
                break
            log(f'{name}, {workers} simulated workers')
            start = time.perf_counter()
            try:
                yield from simulate_cell(name, workers, arguments)
            except UnfitError as error:
                log(f'{name} is left out with {workers} workers: {error}')
            took, before = time.perf_counter() - start, workers


class SharedDecoding(Codec):
    """Decodes a message once for all simulated workers that receive it.

    Otherwise, what 1,024 workers gather would be decoded a million times.
    """

    def __init__(self) -> None:
        super().__init__(CODEC.values, CODEC.indices)
        self._decoded: dict[bytes, Sparse] = {}

    def decode_all(self, messages: Sequence[Tensor]) -> list[Sparse]:
        """See :meth:`Codec.decode_all`."""
        found = []
        for message in messages:
            key = message.numpy().tobytes()
            if key not in self._decoded:
                self._decoded[key] = super().decode_all([message.clone()])[0]
            found.append(self._decoded[key])
        return found


def simulate_cell(name: str, workers: int, arguments: argparse.Namespace) -> Iterator[Result]:
    """The rows of one exchange and number of workers, one for each rate."""
    codec = SharedDecoding()

    def work(engine: SimulatedEngine) -> list[Step]:
        return measure_exchange(name, arguments.case, engine, lambda: engine.clock, codec)

    for rate, network in arguments.networks.items():
        counted = summarize(dgc.simulate(workers, work, network))
        milliseconds = counted.pop('ms')
        yield {
            'exchange': name,
            'engine': SimulatedEngine.name,
            'workers': workers,
            'rate': rate,
            'latency_us': arguments.latency,
            'virtual_ms': milliseconds,
            **counted,
            **expected(name, arguments.case, workers, counted),
        }


def expected(name: str, case: Case, workers: int, counted: dict[str, float]) -> Result:
    """The closed form of the bytes, and whether the counted bytes match it.

    'matches' is None for more than CHECKED workers, with which the closed forms are not checked.
    """
    predicted = closed_form(name, case, workers)
    excess = counted['bytes'] - predicted
    fits = excess < ROUNDING if is_upper_bound(name) else abs(excess) < ROUNDING
    return {
        'predicted_bytes': predicted,
        'matches': fits if workers <= CHECKED else None,
        'numel': case.numel,
        'k': case.k,
    }


def table(results: Sequence[Result], case: Case) -> str:
    """A table for people: a line for each exchange and number of workers, with all rates."""
    cells: dict[tuple[str, int], list[Result]] = {}
    for row in results:
        cells.setdefault((row['exchange'], row['workers']), []).append(row)
    rates = list(dict.fromkeys(row.get('rate', '') for row in results))
    times = ''.join(f'{f"{rate} ms".strip():>12}' for rate in rates)
    head = f'{"":22}{"workers":>8}{times}{"messages":>10}{"bytes":>13}{"closed form":>14}'
    title = f'{case.numel:,} float32 elements, {case.k:,} sent; fp32 values, int32 indices'
    return '\n'.join([title, head, *(line(*key, cells[key]) for key in cells)])


def line(name: str, workers: int, rows: Sequence[Result]) -> str:
    """The line of one exchange and number of workers; the counts are the same at all rates."""
    begin, row = f'{name:22}{workers:8}', rows[0]
    if 'error' in row:
        return f'{begin}  failed: {row["error"]}'
    times = ''.join(f'{each.get("virtual_ms", each.get("ms")):12,.3f}' for each in rows)
    counted = f'{row["messages"]:10,.0f}{row["bytes"]:13,.0f}{row["predicted_bytes"]:14,.0f}'
    return f'{begin}{times}{counted}{" !" if row["matches"] is False else ""}'


def main(argv: Sequence[str]) -> int:
    """Measure or simulate, and print the table; return the exit code."""
    arguments = parse(argv)
    results: list[Result] = []
    for row in simulate(arguments) if arguments.simulate else measure(arguments):
        results.append(row)
        if arguments.json is not None:
            write_json(arguments.json, results)
    if not results:
        return refuse(PROGRAM, 'none of these exchanges can serve these numbers of workers')
    print(table(results, arguments.case))
    if arguments.figure is not None:
        from bench.scaling import draw  # matplotlib takes a second to import

        draw(results, arguments.figure)
    return int(any('error' in row or row['matches'] is False for row in results))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
