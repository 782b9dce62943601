"""The phases of a training step on this machine: `python -m bench.step --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import options, report
from bench.launch import launches, measure
from tools.harness.cli import exit_on_signals, positive
from tools.harness.launch import LAUNCHERS, run_workers
from tools.harness.spec import write_json

PROGRAM = 'bench.step'
WORKER = 'bench.worker'
ROWS = 'compute,dense,dgc'
EXAMPLES = f"""\
example:
    python -m bench.step --model resnet20 --workers 2 --json after.json
the same for another version of dgc, from a checkout of it:
    PYTHONPATH=../before python -m bench.step --model resnet20 --workers 2 --json before.json
bytes and processor time between backward and forward pass, by stage, in this process:
    python -m bench.step --breakdown --model vgg16 --workers 4
the most memory that a step takes beside the weights, in bytes per parameter:
    python -m bench.step --memory --model vgg16 --workers 4 --rounds 3

{report.LEGEND}
Exit status: 2 for invalid input, 1 if no row could be measured.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = options.parser(
        PROGRAM,
        'Measure the phases of a training step with workers on this machine, without a limit of '
        f'the network between them. Rows: {ROWS}, or those that --only names.',
        EXAMPLES,
    )
    parser.set_defaults(only=ROWS, model='resnet20')
    add = parser.add_argument
    add('--workers', type=positive, default=2, metavar='N', help='number of workers (2)')
    add('--launcher', choices=LAUNCHERS.values(), default='torchrun', help='(torchrun)')
    add(
        '--breakdown',
        action='store_true',
        help='bytes per element and ms of each stage of an update, without training',
    )
    add('--memory', action='store_true', help='bytes per parameter of a step, without training')
    arguments = parser.parse_args(argv)
    engines = tuple(e for e, launcher in LAUNCHERS.items() if launcher == arguments.launcher)
    arguments.rows = options.chosen(parser, arguments, engines)
    return arguments


def break_down(arguments: argparse.Namespace) -> int:
    """Measure the stages of an update in this process; print and write them."""
    import torch

    from bench import breakdown

    torch.set_num_threads(1)
    results = breakdown.measure(arguments.model, arguments.workers, arguments.rounds)
    if arguments.json is not None:
        write_json(arguments.json, results)
    numel = f'{results[0]["elements"]:,}'
    print(
        f'{arguments.model}: {numel} parameters, messages of {arguments.workers} workers; '
        f'processor time in ms\n{breakdown.table(results)}'
    )
    return 0


def weigh(arguments: argparse.Namespace) -> int:
    """Measure the memory of a step; print and write it."""
    from bench import memory

    try:
        results = memory.measure(arguments.model, arguments.workers, arguments.rounds)
    except OSError as error:
        print(f'{PROGRAM}: {error}', file=sys.stderr)
        return 1
    if arguments.json is not None:
        write_json(arguments.json, results)
    print(f'{arguments.model}: {results[0]["elements"]:,} parameters\n{memory.table(results)}')
    return 0


def main(argv: Sequence[str]) -> int:
    """Measure and print the table; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    if arguments.memory:
        return weigh(arguments)
    if arguments.breakdown:
        return break_down(arguments)
    common = {'model': arguments.model, 'batch': arguments.batch, 'nodes': arguments.workers}
    results: list[report.Result] = []

    def start(folder: Path) -> int:
        launcher, workers = arguments.launcher, arguments.workers
        return run_workers(launcher, workers, WORKER, folder, arguments.timeout)

    for rows in launches(arguments.rows):
        about, outcomes = measure(options.spec(arguments), rows, start)
        about = {**common, 'rate': 'none', **about}
        results += [report.result(row, about, outcomes[row.name]) for row in rows]
    results = report.compare(report.in_order(results))
    if arguments.json is not None:
        write_json(arguments.json, results)
    print(f'{report.title(results)}\n{report.table(results)}')
    return int(all('error' in each for each in results))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
