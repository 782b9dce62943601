"""Throughput with one slow worker: `python -m bench.parameter_server --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import options
from bench.gate import gate
from bench.launch import environment
from bench.spec import write_json
from bench.workloads import WORKLOADS
from tools.cluster import Cluster, ClusterError, parse_rate

PROGRAM = 'bench.parameter_server'
PORT = 5555
ROWS = {
    'dgs': 'DGS, both ways',
    'asgd': 'ASGD',
    'dgc': 'DGC, synchronous',
}
EXAMPLES = f"""\
example: four workers at 100 Mbit/s, one of them at 10 Mbit/s:
    python -m bench.parameter_server --model vgg16 --batch 8 --seconds 120 --json table.json

rows: {', '.join(ROWS)}. The asynchronous ones have one machine more, for the server.
Samples count whose update arrived while it was measured; "slow" is the worker on the slow link.
Exit status: 2 for what cannot be measured, 1 where a row could not be.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = options.Parser(
        prog=f'python -m {PROGRAM}',
        description='Measure the throughput of asynchronous and synchronous training on an '
        'emulated cluster, where one worker has a slower link.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('--model', choices=WORKLOADS, default='vgg16', help='what is trained (vgg16)')
    add('--batch', type=options.positive, default=8, metavar='N', help='samples a worker (8)')
    add('--workers', type=options.positive, default=4, metavar='N', help='how many train (4)')
    add('--rate', default='100mbit', help='of links (100mbit)')
    add('--slow', default='10mbit', help="of the last worker's link (10mbit)")
    add('--ratio', type=float, default=0.01, help='of what is sent, DGS and DGC (0.01)')
    add('--seconds', type=float, default=120.0, help='that each row is measured for (120)')
    add('--only', nargs='+', choices=ROWS, default=list(ROWS), metavar='ROW', help='these rows')
    add('--json', type=Path, metavar='FILE', help='write the rows there')
    arguments = parser.parse_args(argv)
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        parser.error(f'--json: there is no folder {arguments.json.absolute().parent}')
    try:
        parse_rate(arguments.rate), parse_rate(arguments.slow)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def measure(mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row: what its processes counted, or an error."""
    nodes = arguments.workers + (mode != 'dgc')
    slow = {nodes - 1: arguments.slow}
    with TemporaryDirectory(prefix='bench') as name, Cluster(nodes) as cluster:
        folder = Path(name)
        task = {
            'mode': mode,
            **{key: getattr(arguments, key) for key in ('model', 'batch', 'ratio', 'seconds')},
            'address': cluster.addresses[0],
            'port': PORT,
            'answer': str(folder / 'answer.json'),
            'gate': name,
        }
        write_json(folder / 'spec.json', task)
        command = ['-m', 'bench.parameter_server_worker', str(folder / 'spec.json')]
        timeout = 5 * arguments.seconds + 600
        with gate(folder, partial(cluster.set_rate, arguments.rate, slow)):
            status = cluster.run(command, 'torchrun', environment(), timeout, sys.stderr)
        answer = folder / 'answer.json'
        if not answer.exists():
            return {'mode': mode, 'error': f'its processes ended with {status}'}
        return {'mode': mode, **json.loads(answer.read_text())}


def table(rows: Sequence[dict[str, Any]], batch: int) -> str:
    """One line a row."""
    head = ('', 'samples/s', 'fast workers', 'slow', 'kB an update', 'staleness')
    lines = [head]
    for row in rows:
        if 'error' in row:
            lines.append((ROWS[row['mode']], row['error'], '', '', '', ''))
            continue
        *fast, slow = (batch * updates / row['seconds'] for updates in row['updates'])
        made = max(sum(row['updates']), 1)
        lines.append(
            (
                ROWS[row['mode']],
                f'{sum(fast) + slow:.2f}',
                f'{sum(fast) / max(len(fast), 1):.2f} each',
                f'{slow:.2f}',
                f'{row["received"] / made / 1e3:,.0f} up, {row["sent"] / made / 1e3:,.0f} down',
                f'{row["staleness"]:.1f}',
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join('  '.join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    options.end_tidily()
    rows: list[dict[str, Any]] = []
    try:
        for mode in arguments.only:
            print(f'{time.strftime("%H:%M:%S")} {ROWS[mode]}', file=sys.stderr, flush=True)
            before = os.getloadavg()[0]
            rows.append({**measure(mode, arguments), 'load before': before})
            if arguments.json is not None:
                write_json(arguments.json, rows)
    except (ClusterError, ValueError) as error:
        return options.complain(PROGRAM, str(error))
    print(
        f'{arguments.model}, batch {arguments.batch}, {arguments.workers} workers at '
        f'{arguments.rate}, one of them at {arguments.slow}; ratio {arguments.ratio:g}\n'
        f'{table(rows, arguments.batch)}'
    )
    return int(any('error' in row for row in rows))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
