"""Seconds to a quality, on an emulated cluster: `python -m bench.accuracy --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench.accuracy_rows import ROWS, suits
from bench.accuracy_tasks import TASKS
from bench.accuracy_worker import LIFTED, Recipe
from tools.cluster import Cluster, ClusterError, parse_rate
from tools.harness.cli import Parser, check_name, exit_on_signals, log, names, positive, refuse
from tools.harness.gate import gate
from tools.harness.launch import describe_status, environment
from tools.harness.spec import SPEC, run_with_spec, write_json

PROGRAM = 'bench.accuracy'
WORKER = 'bench.accuracy_worker'
TASK_LINES = '\n'.join(
    f'    {name:9} {task.about}: {task.batch} samples per worker and step, {task.samples:,} in an '
    f'epoch; to {task.target:g}{task.unit}'
    for name, task in TASKS.items()
)
STEADY = ', '.join(name for name, row in ROWS.items() if row.is_steady)
EXAMPLES = f"""\
example: four machines, links of 100 Mbit/s, the seconds to 45 % of the test images:
    python -m bench.accuracy --root data/cifar10 --rate 100mbit --target 45 --json table.json
VGG-16 to 35 % of 1,000 test images, looked at every 10 steps; rows stop there:
    python -m bench.accuracy --task vgg16 --root data/cifar10 --epochs 5 --every 10 --test 1000 \\
        --only 'ddp,ddp fp16,powersgd,dgc'
a GPT on a link so slow that only 20 steps of DDP are trained on it:
    python -m bench.accuracy --task gpt --root data --rate 10mbit --limited 20 \\
        --only ddp,powersgd,diloco

tasks:
{TASK_LINES}
rows: {', '.join(ROWS)}
The clock runs while a row trains, and stops while it is evaluated. Rows are trained one after
another, with the same samples in the same order and the same schedule, and end at the target where
--every is given. With --limited N, rows that send the same bytes in every step ({STEADY}) train
their first N steps at the rate, and their later steps without a limit; each of these counts as long
as the mean of the first ones, since quality does not depend on the rate. An evaluation waits for a
fragment of streaming-diloco that is under way, which then counts as if it were not hidden.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Train a network with one worker on each node of an emulated cluster, and measure how many '
        'seconds each row takes to reach an accuracy or a loss.',
        EXAMPLES,
    )
    add = parser.add_argument
    count = partial(add, type=positive, metavar='N')
    add('--task', default='resnet20', help='what is trained (resnet20)')
    add('--root', default='data/cifar10', help='folder that holds the data (data/cifar10)')
    add('--rate', default='100mbit', help='rate of the links; none: no limit (100mbit)')
    add('--target', type=float, metavar='X', help="accuracy in %%, or loss (the task's)")
    add('--only', metavar='NAME,...', help='measure only these rows (all)')
    add('--lr', type=float, metavar='X', help="highest learning rate (the task's)")
    count('--nodes', default=4, help='number of machines (4)')
    count('--batch', help="samples per worker and step (the task's)")
    count('--epochs', default=8, help='epochs per row (8)')
    count('--warmup', default=2, help='epochs in which the density falls (2)')
    count('--samples', '--images', help="training samples of an epoch (the task's)")
    count('--every', help='steps between two evaluations, and an end at the target (an epoch)')
    count('--limited', help='steps of DDP and its 16-bit hook at the rate (all); see below')
    count('--test', default=10_000, help='evaluate the first N test samples (10,000)')
    add('--timeout', type=float, default=3600.0, help='seconds for one row (3600)')
    add('--json', type=Path, metavar='FILE', help='write the rows to this file')
    arguments = parser.parse_args(argv)
    try:
        check_name('--task', 'task', arguments.task, TASKS)
        rows = [name for name in ROWS if suits(name, TASKS[arguments.task])]
        arguments.names = rows if arguments.only is None else names(arguments.only)
        for name in arguments.names:
            check_name('--only', 'row', name, rows)
        parse_rate(arguments.rate)
        arguments.cluster = Cluster(arguments.nodes)
    except ValueError as error:
        parser.error(str(error))
    task = TASKS[arguments.task]
    if not (Path(arguments.root) / task.needs).exists():
        parser.error(f'--root {arguments.root}: it does not hold {task.needs}')
    arguments.batch = arguments.batch or task.batch
    arguments.samples = arguments.samples or task.samples
    arguments.target = task.target if arguments.target is None else arguments.target
    arguments.lr = task.lr if arguments.lr is None else arguments.lr
    if not 0 < arguments.lr < float('inf'):
        parser.error(f'--lr {arguments.lr}: a learning rate is above 0')
    needed = arguments.batch * arguments.nodes
    if arguments.samples < needed:
        parser.error(f'--samples {arguments.samples}: a step of all workers takes {needed}')
    return arguments


def recipe(name: str, arguments: argparse.Namespace) -> Recipe:
    """Return what the workers of a row train."""
    ends_early = arguments.every is not None
    steps = arguments.samples // arguments.nodes // arguments.batch  # of an epoch
    return Recipe(
        row=name,
        task=arguments.task,
        root=str(Path(arguments.root).absolute()),
        samples=arguments.samples,
        batch=arguments.batch,
        lr=arguments.lr,
        epochs=arguments.epochs,
        every=arguments.every or steps,
        test=arguments.test,
        target=arguments.target if ends_early else None,
        limited=arguments.limited if ROWS[name].is_steady else None,
        warmup=arguments.warmup,
    )


def measure(cluster: Cluster, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one row: quality and seconds after each evaluation, and its error if it failed."""

    def start(folder: Path) -> int:
        cluster.set_rate('none')  # while the initial weights are sent
        command = ['-m', WORKER, str(folder / SPEC)]
        limit = partial(cluster.set_rate, arguments.rate)
        lift = partial(cluster.set_rate, 'none')
        with gate(folder, limit), gate(folder, lift, LIFTED):
            return cluster.run(command, 'torchrun', environment(), arguments.timeout, sys.stderr)

    status, answer = run_with_spec(asdict(recipe(name, arguments)), start)
    answer = answer or {'curve': []}
    row = {
        'name': name,
        'task': arguments.task,
        'rate': arguments.rate,
        'nodes': arguments.nodes,
        'lr': arguments.lr,
        'warmup': arguments.warmup,
        **answer,
        'target': arguments.target,
        'seconds': seconds_to(arguments.task, arguments.target, answer['curve']),
    }
    return {**row, 'error': describe_status(status)} if status else row


def seconds_to(task: str, target: float, curve: Sequence[dict[str, float]]) -> float | None:
    """Return the seconds of training at the first evaluation that reached ``target``, or None."""
    reached = (each for each in curve if TASKS[task].reaches(each['quality'], target))
    return next((each['seconds'] for each in reached), None)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table for people, with seconds / quality at each evaluation."""
    first = rows[0]
    unit = TASKS[first['task']].unit.strip()
    lines = [
        f'seconds to {first["target"]:g} {unit} at {first["rate"]}, {first["nodes"]} nodes; MB '
        f'sent per worker; seconds/{unit} at each evaluation'
    ]
    for row in rows:
        if 'error' in row:
            lines.append(f'{row["name"]:22} failed: {row["error"]}')
            continue
        seconds = 'never' if row['seconds'] is None else f'{row["seconds"]:.0f} s'
        seconds += '*' if row.get('limited') else ''
        sent = '' if row['megabytes'] is None else f'{row["megabytes"]:.2f} MB'
        points = '  '.join(f'{e["seconds"]:.0f}/{e["quality"]:.4g}' for e in row['curve'])
        lines.append(f'{row["name"]:22}{seconds:>8}{sent:>13}   {points}')
    lines += [
        f'* {row["name"]}: {row["limited"]} steps at the rate, its later steps counted as long'
        for row in rows
        if row.get('limited') and 'error' not in row
    ]
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
