"""Seconds to an accuracy, on an emulated cluster: `python -m bench.accuracy --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench.accuracy_worker import ROWS, Recipe
from tools.cluster import Cluster, ClusterError, parse_rate
from tools.harness.cli import Parser, exit_on_signals, log, names, positive, refuse
from tools.harness.gate import gate
from tools.harness.launch import describe_status, environment
from tools.harness.spec import SPEC, run_with_spec, write_json

PROGRAM = 'bench.accuracy'
WORKER = 'bench.accuracy_worker'
IMAGES = 'cifar-10-batches-py'
EXAMPLES = f"""\
example: four machines, links of 100 Mbit/s, the seconds to 45 % of the test images:
    python -m bench.accuracy --root data/cifar10 --rate 100mbit --target 45 --json table.json

rows: {', '.join(ROWS)}
The clock runs while a row trains, and stops while it is evaluated after every epoch. Rows are
trained one after another, with the same images in the same order and the same schedule.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Train ResNet-20 on CIFAR-10 with one worker on each node of an emulated cluster, and '
        'measure how many seconds each row takes to reach an accuracy.',
        EXAMPLES,
    )
    add = parser.add_argument
    count = partial(add, type=positive, metavar='N')
    add('--root', default='data/cifar10', help=f'folder that holds {IMAGES} (data/cifar10)')
    add('--rate', default='100mbit', help='rate of the links; none: no limit (100mbit)')
    add('--target', type=float, default=45.0, metavar='PERCENT', help='of the test images (45)')
    add('--only', metavar='NAME,...', default=','.join(ROWS), help='measure only these rows')
    count('--nodes', default=4, help='number of machines (4)')
    count('--batch', default=32, help='samples per worker and step (32)')
    count('--epochs', default=8, help='epochs per row (8)')
    count('--images', default=10_000, help='number of training images (10,000)')
    add('--timeout', type=float, default=3600.0, help='seconds for one row (3600)')
    add('--json', type=Path, metavar='FILE', help='write the rows to this file')
    arguments = parser.parse_args(argv)
    arguments.names = names(arguments.only)
    for name in arguments.names:
        if name not in ROWS:
            parser.error(f'--only: there is no row {name!r}: there are {", ".join(ROWS)}')
    if not (Path(arguments.root) / IMAGES).is_dir():
        parser.error(f'--root {arguments.root}: it does not hold {IMAGES}')
    try:
        parse_rate(arguments.rate)
        arguments.cluster = Cluster(arguments.nodes)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def measure(cluster: Cluster, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one row: its accuracy and seconds after every epoch, and its error if it failed."""
    root = str(Path(arguments.root).absolute())
    recipe = Recipe(name, root, arguments.images, arguments.batch, arguments.epochs)

    def start(folder: Path) -> int:
        cluster.set_rate('none')  # while the initial weights are sent
        command = ['-m', WORKER, str(folder / SPEC)]
        with gate(folder, partial(cluster.set_rate, arguments.rate)):
            return cluster.run(command, 'torchrun', environment(), arguments.timeout, sys.stderr)

    status, answer = run_with_spec(asdict(recipe), start)
    answer = answer or {'epochs': []}
    row = {
        'name': name,
        'rate': arguments.rate,
        'nodes': arguments.nodes,
        **answer,
        'target': arguments.target,
        'seconds': seconds_to(arguments.target, answer['epochs']),
    }
    return {**row, 'error': describe_status(status)} if status else row


def seconds_to(target: float, epochs: Sequence[dict[str, float]]) -> float | None:
    """Seconds of training at the end of the first epoch with an accuracy of at least ``target``.

    None if there is no such epoch.
    """
    return next((each['seconds'] for each in epochs if each['accuracy'] >= target), None)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A table for people, with seconds / accuracy after every epoch."""
    first = rows[0]
    lines = [
        f'seconds to {first["target"]:g} % at {first["rate"]}, {first["nodes"]} nodes; MB sent per '
        'worker; seconds/accuracy after each epoch'
    ]
    for row in rows:
        if 'error' in row:
            lines.append(f'{row["name"]:22} failed: {row["error"]}')
            continue
        seconds = 'never' if row['seconds'] is None else f'{row["seconds"]:.0f} s'
        epochs = '  '.join(f'{e["seconds"]:.0f}/{e["accuracy"]:.1f}' for e in row['epochs'])
        lines.append(f'{row["name"]:22}{seconds:>8}{row["megabytes"]:10.2f} MB   {epochs}')
    return '\n'.join(lines)


def main(argv: Sequence[str]) -> int:
    """Train all rows and print the table; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    rows: list[dict[str, Any]] = []
    try:
        with arguments.cluster as cluster:
            for name in arguments.names:
                log(name)
                rows.append(measure(cluster, name, arguments))
                if arguments.json is not None:
                    write_json(arguments.json, rows)
    except ClusterError as error:
        return refuse(PROGRAM, str(error))
    print(table(rows))
    return int(all('error' in row for row in rows))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
