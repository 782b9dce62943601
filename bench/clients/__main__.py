"""``python -m bench.clients``: programs that people have, with and without dgc."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.clients.measure import measure
from bench.clients.program import BY_NAME, difference
from bench.clients.results import Setting, append, read, table, variants
from tools.harness.cli import Parser, check_folder, names, positive

DESCRIPTION = """\
Train nine small programs in the style of published ones, as they are (DistributedDataParallel) and
with dgc at density 1 and at a low density, with 2 and 4 ranks. The file of results gets a line for
each run; runs that are in it already are not repeated."""
EXAMPLES = """\
python -m bench.clients --only gan,gpt --ranks 2
python -m bench.clients --diff gan"""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser('bench.clients', DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add('--only', metavar='NAME,...', default='', help=f'of {", ".join(BY_NAME)}')
    add('--ranks', metavar='N,...', default='2,4', help='world sizes (2,4)')
    add('--steps', type=positive, default=100, metavar='N', help='optimizer steps of a run (100)')
    add('--density', type=float, default=0.01, help='the low density (0.01)')
    add('--warmup', type=positive, default=40, help='steps in which it falls from 1 (40)')
    add('--file', type=Path, default=Path('runs/clients.jsonl'), help='(runs/clients.jsonl)')
    add('--timeout', type=float, default=1800.0, help='seconds for the runs of a program (1800)')
    add('--diff', metavar='NAME', help='print the lines that dgc changes in a program, and end')
    return made


def checked(made: Parser, arguments: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Return the chosen programs and world sizes; end the process where one is wrong."""
    programs = names(arguments.only) or list(BY_NAME)
    for name in [*programs, *([arguments.diff] if arguments.diff else [])]:
        if name not in BY_NAME:
            made.error(f'there is no program {name!r}: choose of {", ".join(BY_NAME)}')
    try:
        check_folder('--file', arguments.file)
        sizes = [positive(size) for size in names(arguments.ranks)]
    except (ValueError, argparse.ArgumentTypeError) as error:
        made.error(str(error))
    return programs, sizes


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    made = parser()
    arguments = made.parse_args(words)
    programs, sizes = checked(made, arguments)
    if arguments.diff:
        print('\n'.join(difference(BY_NAME[arguments.diff].path.read_text())))
        return 0
    setting = Setting(arguments.steps, arguments.density, arguments.warmup)
    has_failed = False
    for name in programs:
        for ranks in sizes:
            there = read(arguments.file)
            missing = [v for v in variants(ranks) if (name, ranks, *setting, v) not in there]
            if not missing:
                continue
            print(f'{name}, {ranks} ranks: {", ".join(missing)}', flush=True)
            runs, failure = measure(BY_NAME[name], ranks, missing, setting, arguments.timeout)
            append(arguments.file, runs)
            if failure:
                has_failed = True
                print(f'{name}, {ranks} ranks: {failure}', file=sys.stderr, flush=True)
    runs_there = read(arguments.file)
    for ranks in sizes:
        print(f'\n{ranks} ranks, {setting.steps} steps\n\n{table(runs_there, ranks, setting)}')
    return 1 if has_failed else 0


if __name__ == '__main__':
    sys.exit(main())
