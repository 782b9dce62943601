"""Loss of optimizers with compressed gradients: `python -m bench.optimizers --help`."""

from __future__ import annotations

import json
import statistics
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.harness.cli import Parser, log, names, non_negative, positive
from utils.files import append_line
from utils.lines import json_lines

if TYPE_CHECKING:
    from bench.optimizer_runs import Run

PROGRAM = 'bench.optimizers'
NAMES = (
    'adamw', 'adam', 'nadam', 'rmsprop', 'adafactor', 'muon+adamw', 'sgd', 'dgcsgd', 'lbfgs',
)  # fmt: skip
SHORTEST = 10_000  # bytes of a text: of fewer too few would be left for validation
Result = dict[str, Any]  # a line of the results: a Run and what it came to
EXAMPLES = f"""\
example: Shakespeare's works in one file of 1.1 MB, 1 % of the gradient, two seeds:
    python -m bench.optimizers --text input.txt --results results.jsonl --seeds 2

rows: {', '.join(NAMES)}
Each row is trained uncompressed, and once for each of --warmup-steps, with the same weights and the
same batches. Runs that are in the file of --results already are not repeated, so a measurement
that was interrupted goes on; a line is added after each run. A step of lbfgs evaluates several
gradients, each of which is sent.
"""


def parse(argv: Sequence[str]) -> Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Train a character-level GPT with several simulated workers, and compare the validation '
        'loss of compressed gradients with that of uncompressed ones, by optimizer.',
        EXAMPLES,
    )
    add, count = parser.add_argument, partial(parser.add_argument, type=positive, metavar='N')
    add('--text', type=Path, required=True, metavar='FILE', help='what to learn, as UTF-8')
    add('--results', type=Path, required=True, metavar='FILE', help='JSON, a line for each run')
    add('--only', metavar='NAME,...', default=','.join(NAMES), help='measure only these rows')
    add('--density', type=float, default=0.01, help='of the messages (0.01)')
    add('--warmup-steps', default='0,100', metavar='N,...', help='each of these (0,100)')
    add('--lr', type=float, help="for all rows, in place of each row's own")
    count('--steps', default=400, help='optimizer steps of a run (400)')
    count('--workers', default=4, help='number of simulated workers (4)')
    count('--batch', default=8, help='sequences per worker and step (8)')
    count('--seeds', default=1, help='number of repetitions, with other weights and batches (1)')
    arguments = parser.parse_args(argv)
    arguments.names = names(arguments.only)
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f'--only: there is no row {name!r}: there are {", ".join(NAMES)}')
    try:
        arguments.warmups = [non_negative(each) for each in names(arguments.warmup_steps)]
    except (ValueError, ArgumentTypeError):
        parser.error(f'--warmup-steps: {arguments.warmup_steps!r} is not a list of whole numbers')
    if not 0 < arguments.density < 1:
        parser.error(f'--density must be above 0 and below 1, got {arguments.density}')
    if not arguments.text.is_file():
        parser.error(f'--text: there is no file {arguments.text}')
    if arguments.text.stat().st_size < SHORTEST:
        parser.error(f'--text: {arguments.text} has less than {SHORTEST} bytes')
    if not arguments.results.absolute().parent.is_dir():
        parser.error(f'--results: there is no folder {arguments.results.absolute().parent}')
    return arguments


def runs(arguments: Namespace) -> Iterator[Run]:
    """Yield what the command line asks for, one seed after another."""
    from bench.optimizer_runs import ROWS, Run

    given = arguments.steps, arguments.workers, arguments.batch
    densities = [(1.0, 0), *((arguments.density, steps) for steps in arguments.warmups)]
    for seed in range(arguments.seeds):
        for name in arguments.names:
            for density in densities:
                yield Run(name, arguments.lr or ROWS[name].lr, *density, *given, seed)


def measure(arguments: Namespace) -> list[Result]:
    """Train what is not in the file of results yet; return the results of all runs asked for."""
    from bench.optimizer_runs import Text, train

    known = json_lines(arguments.results)
    text, results = Text(arguments.text), []
    for run in runs(arguments):
        asked = asdict(run)
        result = next((each for each in known if asked.items() <= each.items()), None)
        if result is None:
            result = {**asked, **train(run, text)}
            append_line(arguments.results, json.dumps(result))
            log(' '.join(f'{key}={value}' for key, value in result.items()))
        results.append(result)
    return results


def table(results: Iterable[Result]) -> str:
    """Return a table for people: the mean loss over the seeds, by optimizer and warm-up."""
    groups: dict[tuple[str, float, int], list[Result]] = {}
    for each in results:
        key = each['optimizer'], each['density'], each['warmup_steps']
        groups.setdefault(key, []).append(each)
    lines = [f'{"optimizer":12}{"density":>9}{"warm-up":>9}{"loss":>8}{"behind":>9}{"MB sent":>9}']
    for (name, density, warmup), group in groups.items():
        dense = {each['seed']: each['loss'] for each in groups[name, 1.0, 0]}
        behind = [each['loss'] - dense[each['seed']] for each in group]
        lines.append(
            f'{name:12}{density:>9g}{warmup:>9}{mean(group, "loss"):>8.3f}'
            f'{statistics.mean(behind):>+9.3f}{mean(group, "megabytes"):>9.2f}'
            + (f'  ({min(behind):+.3f} to {max(behind):+.3f})' if len(behind) > 1 else '')
        )
    return '\n'.join(lines)


def mean(group: Sequence[Result], key: str) -> float:
    """Return the mean of one number of several results."""
    return statistics.mean(each[key] for each in group)


def main(argv: Sequence[str]) -> int:
    """Train, and print the table; return the exit code."""
    arguments = parse(argv)
    print(table(measure(arguments)))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
