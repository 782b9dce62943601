"""What the command lines of the benchmarks have in common. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from bench.rows import Row, select
from bench.spec import Spec
from bench.workloads import WORKLOADS

BAD_INPUT = 2  # exit code


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End the process."""
        raise SystemExit(complain(self.prog, message))


def complain(program: str, message: str) -> int:
    """Print the one line that says why the program ends; returns the exit code."""
    print(f'{program.removeprefix("python -m ")}: {message}', file=sys.stderr, flush=True)
    return BAD_INPUT


def parser(program: str, description: str, examples: str) -> Parser:
    """With the options that all have."""
    ours = Parser(
        prog=f'python -m {program}',
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = ours.add_argument
    add('--model', choices=WORKLOADS, default='vgg16', help='what is trained (vgg16)')
    add('--batch', type=positive, default=8, metavar='N', help='samples a worker and step (8)')
    add('--only', metavar='NAME,...', default='', help='these rows, instead of all')
    add('--steps', type=positive, default=4, metavar='N', help='of a row in one round (4)')
    add('--rounds', type=positive, default=5, metavar='N', help='in which each row has a turn (5)')
    add('--seconds', type=float, default=30.0, help='that a row may take, in fewer steps (30)')
    add('--timeout', type=float, default=1800.0, help='seconds for one set of workers (1800)')
    add('--json', type=Path, metavar='FILE', help='write the rows there')
    return ours


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} is less than 1')
    return number


def chosen(ours: Parser, arguments: argparse.Namespace, engines: tuple[str, ...]) -> list[Row]:
    """The rows that --only names, checked with whatever would be known only after hours."""
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        ours.error(f'--json: there is no folder {arguments.json.absolute().parent}')
    try:
        return select([name.strip() for name in arguments.only.split(',') if name.strip()], engines)
    except ValueError as error:
        ours.error(f'--only: {error}')


def spec(arguments: argparse.Namespace, interface: str = '') -> Spec:
    """What is to be measured, but for the rows."""
    return Spec(
        model=arguments.model,
        batch=arguments.batch,
        rows=[],
        rounds=arguments.rounds,
        steps=arguments.steps,
        seconds=arguments.seconds,
        answer='',
        interface=interface,
    )


def end_tidily() -> None:
    """Let signals end the program as an exception does, so that what was started is ended too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has made it
            signal.signal(number, lambda number, _: sys.exit(128 + number))
