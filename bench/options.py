"""Options that the benchmarks of rows (``bench.step``, ``bench.cluster``) have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.rows import Row, select
from bench.spec import Spec
from tools.harness.cli import Parser, check_folder, names, positive
from tools.harness.workloads import WORKLOADS


def parser(program: str, description: str, examples: str) -> Parser:
    """A parser with the common options."""
    made = Parser(program, description, examples)
    add = made.add_argument
    add('--model', choices=WORKLOADS, default='vgg16', help='network to train (vgg16)')
    add('--batch', type=positive, default=8, metavar='N', help='samples per worker and step (8)')
    add('--only', metavar='NAME,...', default='', help='measure only these rows')
    add('--list', action='store_true', help='print the names of all rows, and end')
    add('--steps', type=positive, default=4, metavar='N', help='steps of a row per round (4)')
    add('--rounds', type=positive, default=5, metavar='N', help='turns of each row (5)')
    add('--seconds', type=float, default=30.0, help='time limit per row: fewer steps fit (30)')
    add('--timeout', type=float, default=1800.0, help='seconds for one set of workers (1800)')
    add('--json', type=Path, metavar='FILE', help='write the rows to this file')
    return made


def chosen(parser: Parser, arguments: argparse.Namespace, engines: tuple[str, ...]) -> list[Row]:
    """The rows that --only names, of these engines. Also checks --json before hours are spent.

    Ends the process with exit code 2 if a row or the folder of the file does not exist; with 0
    after --list.
    """
    if arguments.list:
        print('\n'.join(dict.fromkeys(row.base for row in select(engines=engines))))
        raise SystemExit(0)
    try:
        check_folder('--json', arguments.json)
    except ValueError as error:
        parser.error(str(error))
    try:
        return select(names(arguments.only), engines)
    except ValueError as error:
        parser.error(f'--only: {error}')


def spec(arguments: argparse.Namespace, interface: str = '') -> Spec:
    """The specification of a launch, without its rows.

    Args:
        arguments: parsed command line.
        interface: network interface whose bytes are counted; '' for none.
    """
    return Spec(
        model=arguments.model,
        batch=arguments.batch,
        rows=[],
        rounds=arguments.rounds,
        steps=arguments.steps,
        seconds=arguments.seconds,
        interface=interface,
    )
