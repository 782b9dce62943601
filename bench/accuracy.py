"""Seconds to an accuracy, on an emulated cluster: `python -m bench.accuracy --help`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import options
from bench.accuracy_worker import ROWS, Recipe
from bench.gate import gate
from bench.launch import ending, environment
from bench.spec import write_json
from tools.cluster import Cluster, ClusterError, parse_rate

PROGRAM = 'bench.accuracy'
WORKER = 'bench.accuracy_worker'
EXAMPLES = f"""\
example: four machines, links of 100 Mbit/s, the seconds to 45 % of the test images:
    python -m bench.accuracy --root data/cifar10 --rate 100mbit --target 45 --json table.json

rows: {', '.join(ROWS)}
The clock runs while a row trains, and stands still while it is evaluated, after every epoch. Rows
are trained one after another, with the same images in the same order, and the same schedule.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = options.Parser(
        prog=f'python -m {PROGRAM}',
        description='Train ResNet-20 on CIFAR-10 with one worker on each node of an emulated '
        'cluster, and tell how many seconds each row took to an accuracy.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    whole = partial(add, type=options.positive, metavar='N')
    add('--root', default='data/cifar10', help='that holds cifar-10-batches-py (data/cifar10)')
    add('--rate', default='100mbit', help='of links; none: no limit (100mbit)')
    add('--target', type=float, default=45.0, metavar='PERCENT', help='of test images (45)')
    add('--only', metavar='NAME,...', default=','.join(ROWS), help='these rows')
    whole('--nodes', default=4, help='how many machines (4)')
    whole('--batch', default=32, help='samples a worker and step (32)')
    whole('--epochs', default=8, help='of each row (8)')
    whole('--images', default=10_000, help='that are trained with (10,000)')
    add('--timeout', type=float, default=3600.0, help='seconds for one row (3600)')
    add('--json', type=Path, metavar='FILE', help='write the rows there')
    arguments = parser.parse_args(argv)
    arguments.names = [name.strip() for name in arguments.only.split(',')]
    for name in arguments.names:
        if name not in ROWS:
            parser.error(f'--only: there is no row {name!r}: there are {", ".join(ROWS)}')
    if not (Path(arguments.root) / 'cifar-10-batches-py').is_dir():
        parser.error(f'--root {arguments.root}: it does not hold cifar-10-batches-py')
    try:
        parse_rate(arguments.rate)
        arguments.cluster = Cluster(arguments.nodes)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def measure(cluster: Cluster, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row: its accuracy and the seconds so far after every epoch, or why there is none."""
    recipe = Recipe(
        name, str(Path(arguments.root).absolute()), arguments.images, arguments.batch,
        arguments.epochs,
    )  # fmt: skip
    with TemporaryDirectory(prefix='bench') as place:
        folder = Path(place)
        answer = folder / 'answer.json'
        write_json(folder / 'spec.json', {**asdict(recipe), 'answer': str(answer)})
        cluster.set_rate('none')  # while the first weights are sent
        with gate(folder, partial(cluster.set_rate, arguments.rate)):
            command = ['-m', WORKER, str(folder / 'spec.json')]
            status = cluster.run(command, 'torchrun', environment(), arguments.timeout, sys.stderr)
        told: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {'epochs': []}
    about = {'name': name, 'rate': arguments.rate, 'nodes': arguments.nodes}
    row = {**about, **told, 'target': arguments.target, 'seconds': reached(told, arguments.target)}
    return {**row, 'error': ending(status)} if status else row


def reached(told: dict[str, Any], target: float) -> float | None:
    """Seconds of training until an epoch ended at ``target`` or above; None where none did."""
    times = (each['seconds'] for each in told['epochs'] if each['accuracy'] >= target)
    return next(times, None)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What a person reads; seconds / accuracy after every epoch."""
    lines = []
    for row in rows:
        if 'error' in row:
            lines.append(f'{row["name"]:22} failed: {row["error"]}')
            continue
        seconds = 'never' if row['seconds'] is None else f'{row["seconds"]:.0f} s'
        epochs = '  '.join(f'{e["seconds"]:.0f}/{e["accuracy"]:.1f}' for e in row['epochs'])
        lines.append(f'{row["name"]:22}{seconds:>8}{row["megabytes"]:10.2f} MB   {epochs}')
    first = rows[0]
    title = (
        f'to {first["target"]:g} % at {first["rate"]}, {first["nodes"]} nodes; MB sent a worker; '
        'seconds/accuracy after each epoch'
    )
    return '\n'.join([title, *lines])


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    options.end_tidily()
    rows: list[dict[str, Any]] = []
    try:
        with arguments.cluster as cluster:
            for name in arguments.names:
                print(f'{time.strftime("%H:%M:%S")} {name}', file=sys.stderr, flush=True)
                rows.append(measure(cluster, name, arguments))
                if arguments.json is not None:
                    write_json(arguments.json, rows)
    except ClusterError as error:
        return options.complain(PROGRAM, str(error))
    print(table(rows))
    return int(all('error' in row for row in rows))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
