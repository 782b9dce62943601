"""Throughput with one slow worker: `python -m bench.parameter_server --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.cluster import Cluster, ClusterError, parse_rate
from tools.harness.algorithms import asynchronous
from tools.harness.cli import Parser, check_folder, exit_on_signals, log, positive, refuse
from tools.harness.gate import gate
from tools.harness.launch import environment
from tools.harness.spec import SPEC, run_with_spec, write_json
from tools.harness.tables import align
from tools.harness.workloads import WORKLOADS

PROGRAM = 'bench.parameter_server'
WORKER = 'bench.parameter_server_worker'
PORT = 5555
SYNCHRONOUS = 'dgc'
ROWS = {  # measured by default, with their names in the table
    'dgs': 'DGS, both ways',
    'asgd': 'ASGD',
    SYNCHRONOUS: 'DGC, synchronous',
}
EXAMPLES = f"""\
example: four workers at 100 Mbit/s, one of them at 10 Mbit/s:
    python -m bench.parameter_server --model vgg16 --batch 8 --seconds 120 --json table.json

rows: {', '.join(ROWS)}; with --only, also the other asynchronous algorithms of dgc/algorithms. The
asynchronous ones use one more machine, for the server. A sample counts if its update arrived while
the row was measured; "slow" is the worker on the slow link.
Exit status: 2 for invalid input, 1 if a row could not be measured.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Measure the throughput of asynchronous and synchronous training on an emulated cluster '
        'in which one worker has a slower link.',
        EXAMPLES,
    )
    add = parser.add_argument
    add('--model', choices=WORKLOADS, default='vgg16', help='network to train (vgg16)')
    add('--batch', type=positive, default=8, metavar='N', help='samples per worker and step (8)')
    add('--workers', type=positive, default=4, metavar='N', help='number of workers (4)')
    add('--rate', default='100mbit', help='rate of the links (100mbit)')
    add('--slow', default='10mbit', help="rate of the last worker's link (10mbit)")
    add('--ratio', type=float, default=0.01, help='density of messages, DGS and DGC (0.01)')
    add('--seconds', type=float, default=120.0, help='measuring time per row (120)')
    add('--only', nargs='+', default=list(ROWS), metavar='ROW', help='measure only these rows')
    add('--json', type=Path, metavar='FILE', help='write the rows to this file')
    arguments = parser.parse_args(argv)
    try:
        check_names(arguments.only)
        check_folder('--json', arguments.json)
        parse_rate(arguments.rate), parse_rate(arguments.slow)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def check_names(modes: Sequence[str]) -> None:
    """Raise ValueError for the name of a row that cannot be measured."""
    for mode in modes:
        if mode not in ROWS and mode not in asynchronous():
            choices = ', '.join(dict.fromkeys([*ROWS, *asynchronous()]))
            raise ValueError(f'--only: invalid choice: {mode!r} (choose from {choices})')


def measure(mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one row; it has an 'error' if its processes failed."""
    nodes = arguments.workers + (mode != SYNCHRONOUS)
    slow = {nodes - 1: arguments.slow}
    with Cluster(nodes) as cluster:

        def start(folder: Path) -> int:
            command = ['-m', WORKER, str(folder / SPEC)]
            timeout = 5 * arguments.seconds + 600
            with gate(folder, partial(cluster.set_rate, arguments.rate, slow)):
                return cluster.run(command, 'torchrun', environment(), timeout, sys.stderr)

        task = {
            'mode': mode,
            **{key: getattr(arguments, key) for key in ('model', 'batch', 'ratio', 'seconds')},
            'address': cluster.addresses[0],
            'port': PORT,
        }
        status, answer = run_with_spec(task, start)
    if not answer:
        return {'mode': mode, 'error': f'its processes ended with {status}'}
    return {'mode': mode, **answer}


def table(rows: Sequence[dict[str, Any]], batch: int) -> str:
    """A table for people, one line per row. batch: samples per worker and step."""
    lines = [('', 'samples/s', 'fast workers', 'slow', 'kB per update', 'staleness')]
    for row in rows:
        if 'error' in row:
            lines.append((ROWS.get(row['mode'], row['mode']), row['error'], '', '', '', ''))
            continue
        *fast, slow = (batch * updates / row['seconds'] for updates in row['updates'])
        made = max(sum(row['updates']), 1)
        lines.append(
            (
                ROWS.get(row['mode'], row['mode']),
                f'{sum(fast) + slow:.2f}',
                f'{sum(fast) / max(len(fast), 1):.2f} each',
                f'{slow:.2f}',
                f'{row["received"] / made / 1e3:,.0f} up, {row["sent"] / made / 1e3:,.0f} down',
                f'{row["staleness"]:.1f}',
            )
        )
    return '\n'.join(align(lines))


def main(argv: Sequence[str]) -> int:
    """Measure all rows and print the table; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    rows: list[dict[str, Any]] = []
    try:
        for mode in arguments.only:
            log(ROWS.get(mode, mode))
            before = os.getloadavg()[0]
            rows.append({**measure(mode, arguments), 'load before': before})
            if arguments.json is not None:
                write_json(arguments.json, rows)
    except (ClusterError, ValueError) as error:
        return refuse(PROGRAM, str(error))
    print(
        f'{arguments.model}, batch {arguments.batch}, {arguments.workers} workers at '
        f'{arguments.rate}, one of them at {arguments.slow}; density {arguments.ratio:g}\n'
        f'{table(rows, arguments.batch)}'
    )
    return int(any('error' in row for row in rows))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
