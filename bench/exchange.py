"""How long a sum over the workers takes: `python -m bench.exchange --help`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import dgc
from bench import options
from bench.cluster import say
from bench.exchange_worker import (
    CODEC,
    EXCHANGES,
    Case,
    Step,
    UnfitError,
    Worker,
    closed_form,
    figures,
)
from bench.launch import ending, why_not
from bench.rows import LAUNCHERS
from bench.spec import write_json
from bench.step import start
from dgc.codec import Codec
from dgc.costmodel import Network
from dgc.engines import SimulatedEngine
from dgc.sparse import Sparse
from tools.cluster import parse_rate

PROGRAM = 'bench.exchange'
WORKER = 'bench.exchange_worker'
EXAMPLES = f"""\
examples: real processes on this machine, then a simulated network with up to 1,024 workers:
    python -m bench.exchange --workers 2 3 4 8 --json real.json
    python -m bench.exchange --simulate --json simulated.json --figure scaling.png

exchanges: {', '.join(EXCHANGES)}
ms: of one whole exchange, the slowest worker's, the median over the steps. messages, bytes: of the
worker that sends most, in a step. closed form: the bytes expected; '!' where others were counted.
Exit status: 2 for what cannot be measured, 1 where an exchange failed or sent other bytes.
"""
# The closed forms of these are the most that they can send: how much it is depends on the data.
AT_MOST = {'ok-topk', 'spardl 4 teams bruck'}
ROUNDING = 2  # bytes, since an engine counts whole ones
CHECKED = 64  # workers up to whom the closed forms must hold

Result = dict[str, Any]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = options.Parser(
        prog=f'python -m {PROGRAM}',
        description='Measure exchanges of one bucket, or simulate them on a network.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    whole = partial(add, type=options.positive, metavar='N')
    whole('--workers', nargs='+', help='how many (2 3 4 8; simulated: 2 4 8 … 1024)')
    add('--engine', choices=LAUNCHERS, default='torch', help='that carries the bytes (torch)')
    whole('--numel', help='elements of the bucket (2^20; simulated: 2^18)')
    whole('--k', help='of them that are sent (1024; simulated: 256)')
    whole('--steps', help='that count (10; simulated: 1)')
    add('--only', metavar='NAME,...', default=','.join(EXCHANGES), help='these exchanges')
    add('--timeout', type=float, default=600.0, help='seconds for one set of workers (600)')
    add('--simulate', action='store_true', help='on the virtual clock of the simulated engine')
    add('--rates', nargs='+', default=['1gbit', '10gbit', '100gbit'], help='of simulated links')
    add('--latency', type=float, default=50.0, help='of simulated links, in µs (50)')
    add('--patience', type=float, default=900.0, help='seconds for all rates of a line (900)')
    add('--json', type=Path, metavar='FILE', help='write the rows there')
    add('--figure', type=Path, metavar='FILE', help='draw what was simulated there, as PNG')
    arguments = parser.parse_args(argv)
    complete(parser, arguments)
    return arguments


def complete(parser: options.Parser, arguments: argparse.Namespace) -> None:
    """Fill in what depends on the engine, and check the rest."""
    simulated = arguments.simulate
    powers = [2**power for power in range(1, 11)]
    arguments.workers = arguments.workers or (powers if simulated else [2, 3, 4, 8])
    numel = arguments.numel or (2**18 if simulated else 2**20)
    k = arguments.k or (256 if simulated else 1024)
    arguments.case = Case(numel, k, arguments.steps or (1 if simulated else 10))
    arguments.names = [name.strip() for name in arguments.only.split(',')]
    for name in arguments.names:
        if name not in EXCHANGES:
            parser.error(f'--only: there is no exchange {name!r}: there are {", ".join(EXCHANGES)}')
    if k > numel:
        parser.error(f'--k: there are only {numel} elements, not {k}')
    if arguments.figure is not None and not simulated:
        parser.error('--figure: only what is simulated is drawn: add --simulate')
    for file in filter(None, (arguments.json, arguments.figure)):
        if not file.absolute().parent.is_dir():
            parser.error(f'there is no folder {file.absolute().parent}')
    try:
        arguments.networks = {
            rate: Network.of(parse_rate(rate), 1e-6 * arguments.latency) for rate in arguments.rates
        }
    except ValueError as error:
        parser.error(str(error))


def measure(arguments: argparse.Namespace) -> Iterator[Result]:
    """One row an exchange and number of workers, in processes of this machine."""
    options.end_tidily()
    for workers in arguments.workers:
        answer, ended = launch(arguments, workers)
        for name in arguments.names:
            about = {'exchange': name, 'engine': arguments.engine, 'workers': workers}
            if name in answer['measured']:
                counted = answer['measured'][name]
                yield {**about, **counted, **expected(name, arguments.case, workers, counted)}
            elif name in answer['unfit']:
                say(f'{name} is left out with {workers} workers: {answer["unfit"][name]}')
            else:
                yield {**about, 'error': ended}


def launch(arguments: argparse.Namespace, workers: int) -> tuple[dict[str, Any], str]:
    """What so many workers have answered, and how they ended."""
    launcher = LAUNCHERS[arguments.engine]
    say(f'{launcher}, {workers} workers')
    nothing: dict[str, Any] = {'measured': {}, 'unfit': {}}
    reason = why_not(arguments.engine)
    if reason:
        return nothing, reason
    with TemporaryDirectory(prefix='bench') as name:
        answer = Path(name) / 'answer.json'
        asked = {'case': asdict(arguments.case), 'exchanges': arguments.names}
        write_json(Path(name) / 'spec.json', {**asked, 'answer': str(answer)})
        status = start(launcher, workers, arguments.timeout, Path(name), WORKER)
        told = json.loads(answer.read_text()) if answer.exists() else nothing
    return told, ending(status)


def simulate(arguments: argparse.Namespace) -> Iterator[Result]:
    """One row an exchange, number of workers and rate.

    An exchange is left out from where it would take longer than ``--patience``, as far as the last
    can tell: with twice the workers, each of them reads twice as many messages.
    """
    torch.set_num_threads(1)  # the workers take turns
    for name in arguments.names:
        took, before = 0.0, 1
        for workers in sorted(arguments.workers):
            if took * (workers / before) ** 2 > arguments.patience:
                say(f'{name} is left out from {workers} workers on: see --patience')
                break
            say(f'{name}, {workers} simulated workers')
            begun = time.perf_counter()
            try:
                yield from simulate_cell(name, workers, arguments)
            except UnfitError as error:
                say(f'{name} is left out with {workers} workers: {error}')
            took, before = time.perf_counter() - begun, workers


class SharedReading(Codec):
    """Decodes a message once for all the workers of a process who receive it: what 1,024 of them
    gather would otherwise be decoded a million times."""

    def __init__(self) -> None:
        super().__init__(CODEC.values, CODEC.indices)
        self._read: dict[bytes, Sparse] = {}

    def decode(self, message: Tensor) -> Sparse:
        """See :meth:`Codec.decode`."""
        key = message.numpy().tobytes()
        if key not in self._read:
            self._read[key] = super().decode(message.clone())
        return self._read[key]


def simulate_cell(name: str, workers: int, arguments: argparse.Namespace) -> Iterator[Result]:
    """One exchange and number of workers, at every rate."""
    codec = SharedReading()

    def work(engine: SimulatedEngine) -> list[Step]:
        return Worker(name, arguments.case, engine, lambda: engine.clock, codec).steps()

    for rate, network in arguments.networks.items():
        counted = figures(dgc.simulate(workers, work, network))
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
    """The closed form of what was counted, and whether it matches; None where none asks."""
    predicted = closed_form(name, case, workers)
    more = counted['bytes'] - predicted
    fits = more < ROUNDING if name in AT_MOST else abs(more) < ROUNDING
    return {
        'predicted_bytes': predicted,
        'matches': fits if workers <= CHECKED else None,
        'numel': case.numel,
        'k': case.k,
    }


def table(results: Sequence[Result], case: Case) -> str:
    """What a person reads: a line an exchange and number of workers, with all rates."""
    cells: dict[tuple[str, int], list[Result]] = {}
    for row in results:
        cells.setdefault((row['exchange'], row['workers']), []).append(row)
    rates = list(dict.fromkeys(row.get('rate', '') for row in results))
    times = ''.join(f'{f"{rate} ms".strip():>12}' for rate in rates)
    head = f'{"":22}{"workers":>8}{times}{"messages":>10}{"bytes":>13}{"closed form":>14}'
    title = f'{case.numel:,} float32 elements, {case.k:,} sent; fp32 values, int32 indices'
    return '\n'.join([title, head, *(line(*key, cells[key]) for key in cells)])


def line(name: str, workers: int, rows: Sequence[Result]) -> str:
    """One exchange and number of workers; what was counted is alike at all rates."""
    begin, row = f'{name:22}{workers:8}', rows[0]
    if 'error' in row:
        return f'{begin}  failed: {row["error"]}'
    times = ''.join(f'{each.get("virtual_ms", each.get("ms")):12,.3f}' for each in rows)
    counted = f'{row["messages"]:10,.0f}{row["bytes"]:13,.0f}{row["predicted_bytes"]:14,.0f}'
    return f'{begin}{times}{counted}{" !" if row["matches"] is False else ""}'


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    results: list[Result] = []
    for row in simulate(arguments) if arguments.simulate else measure(arguments):
        results.append(row)
        if arguments.json is not None:
            write_json(arguments.json, results)
    if not results:
        return options.complain(PROGRAM, 'no exchange can serve these numbers of workers')
    print(table(results, arguments.case))
    if arguments.figure is not None:
        from bench.scaling import draw  # matplotlib takes a second to import

        draw(results, arguments.figure)
    return int(any('error' in row or row['matches'] is False for row in results))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
