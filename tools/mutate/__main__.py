"""Draw mutations of dgc/ and see which of them the tests find: `python -m tools.mutate`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tools.mutate.mutations import Mutation, draw
from tools.mutate.trial import BaselineError, Record, Suite, Trial, copied

PROGRAM = 'tools.mutate'
ROOT = Path(__file__).parents[2]
EXCLUDED = {'dgc/ops/cuda.py'}  # its tests need a GPU
BAD_INPUT, SURVIVED = 2, 1  # exit codes


class Parser(argparse.ArgumentParser):
    """Reports what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End the process."""
        print(f'{PROGRAM}: {message}', file=sys.stderr)
        raise SystemExit(BAD_INPUT)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; what stands after -- is for pytest."""
    argv = list(argv)
    split = argv.index('--') if '--' in argv else len(argv)
    parser = Parser(
        prog=f'python -m {PROGRAM}',
        description='Draw mutations of dgc/ by a seed: comparisons and signs swapped, constants '
        'off by one, conditions negated, return values replaced, statements deleted. Lists them, '
        'applies one, or runs the tests on each. Exit status 1 where one survives.',
        epilog='Arguments of pytest follow --, such as: -- -n 2 --timeout 120',
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('--seed', type=int, default=0, help='of the draw (0)')
    add('--count', type=_positive, default=30, metavar='N', help='mutations to draw (30)')
    add('--only', default='dgc', metavar='PATH', help='a file or folder of dgc/ (dgc)')
    action = parser.add_mutually_exclusive_group()
    action.add_argument('--list', action='store_true', help='list them, with their numbers')
    action.add_argument('--apply', type=int, metavar='N', help='apply mutation N to this tree')
    action.add_argument('--run', action='store_true', help='try each in a copy of this tree')
    add('--fast', action='store_true', help='run only the tests that name the mutated module')
    add('--limit', type=float, default=1800.0, help='seconds for one run of the tests (1800)')
    add('--results', type=Path, default=Path('mutations.jsonl'), metavar='FILE',
        help='where results are added, and from which a run goes on (mutations.jsonl)')  # fmt: skip
    arguments = parser.parse_args(argv[:split])
    arguments.pytest = argv[split + 1 :]
    if arguments.apply is not None and not 0 <= arguments.apply < arguments.count:
        parser.error(f'--apply: the mutations are numbered from 0 to {arguments.count - 1}')
    if not files(ROOT, arguments.only):
        parser.error(f'--only: there is no module under {arguments.only}; give a path of dgc/')
    return arguments


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} is less than 1')
    return number


def files(root: Path, only: str) -> list[str]:
    """Modules to mutate: of dgc/, under the path ``only``."""
    found = [str(path.relative_to(root)) for path in sorted((root / 'dgc').rglob('*.py'))]
    prefix = only.rstrip('/')
    return [f for f in found if (f == prefix or f.startswith(f'{prefix}/')) and f not in EXCLUDED]


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    drawn = draw(ROOT, files(ROOT, arguments.only), arguments.seed, arguments.count)
    if arguments.run:
        return run(drawn, arguments)
    if arguments.apply is not None:
        mutation = drawn[arguments.apply]
        path = ROOT / mutation.file
        path.write_bytes(mutation.apply(path.read_bytes()))
        print(mutation)
        return 0
    for number, mutation in enumerate(drawn):
        print(f'{number:3d}  {mutation}')
    return 0


def run(drawn: Sequence[Mutation], arguments: argparse.Namespace) -> int:
    """Try each mutation and print a line on it; returns the exit code."""
    survivors = 0
    with tempfile.TemporaryDirectory() as folder, copied(ROOT, Path(folder)) as tree:
        suite = Suite(tree, arguments.pytest, arguments.limit)
        trial = Trial(suite, Record(arguments.results), arguments.fast)
        for number, mutation in enumerate(drawn):
            try:
                result = trial.result(mutation)
            except BaselineError as error:
                print(f'{PROGRAM}: {error}', file=sys.stderr)
                return BAD_INPUT
            survivors += result['result'] == 'survived'
            print(f'{number:3d}  {result["result"]:8s}  {mutation}', flush=True)
            if result['test']:
                print(f'     by {result["test"]}', flush=True)
    print(f'{len(drawn) - survivors} of {len(drawn)} killed')
    return SURVIVED if survivors else 0


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        print(f'{PROGRAM}: `{" ".join(error.cmd)}`: {error.stderr.strip()}', file=sys.stderr)
        sys.exit(BAD_INPUT)
