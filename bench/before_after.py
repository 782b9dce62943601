"""Two checkouts measured in turn: `python -m bench.before_after --help`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.harness.cli import Parser, log, positive
from utils.files import append_line
from utils.lines import json_lines

PROGRAM = 'bench.before_after'
EXAMPLE = """\
example: the step times of three networks, in three rounds; about 25 minutes a round:
    git worktree add ../before COMMIT
    python -m bench.before_after ../before results.jsonl
A command that was interrupted goes on where it was. Each measurement is a line of the file.
"""
ROWS = 'compute,dgc (torch),dgc packed int8,dgc merged,gtopk'
BATCHES = {'vgg16': 8, 'transformer': 4, 'resnet20': 16}


class Job(NamedTuple):
    """One run of ``bench.cluster`` in a checkout."""

    number: int  # of the round
    model: str
    version: str  # 'before' or 'after'


def jobs(rounds: int, models: Sequence[str]) -> Iterator[Job]:
    """Yield all runs; the checkouts alternate, each one first in every second round."""
    for number in range(rounds):
        versions = ('before', 'after') if number % 2 == 0 else ('after', 'before')
        for model in models:
            for version in versions:
                yield Job(number, model, version)


def run(job: Job, checkout: Path, rates: Sequence[str], file: Path) -> list[dict[str, Any]]:
    """Measure in a checkout; return the rows.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    command = [
        sys.executable, '-m', 'bench.cluster', '--model', job.model, '--batch',
        str(BATCHES[job.model]), '--nodes', '4', '--rates', *rates, '--rounds', '4', '--steps', '3',
        '--seconds', '8', '--launcher', 'torchrun', '--only', ROWS, '--json', str(file),
    ]  # fmt: skip
    subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def table(measured: Sequence[dict[str, Any]]) -> str:
    """Return, by model, rate and row, both versions: step time over that of compute alone, and the
    processor time beyond it; medians over the rounds, with the least and the most."""
    found: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for each in measured:
        rows = {(row['rate'], row['name']): row for row in each['rows'] if 'error' not in row}
        for (rate, name), row in rows.items():
            alone = rows.get((rate, 'compute'))
            if alone is not None and name != 'compute':
                ratio = row['median_ms'] / alone['median_ms']
                more = row['cpu_ms'] - alone['cpu_ms']
                found[each['model'], rate, name][each['version']].append((ratio, more))
    lines = [f'{"":44}' + ''.join(f'{version:>36}' for version in ('before', 'after'))]
    for (model, rate, name), versions in found.items():
        cells = ''
        for version in ('before', 'after'):
            ratios, more = zip(*versions.get(version, [(float('nan'),) * 2]), strict=True)
            cells += (
                f'{statistics.median(ratios):10.3f} × ({min(ratios):.3f} to {max(ratios):.3f})'
                f'{statistics.median(more):7.1f}'
            )
        lines.append(f'{model:12}{rate:9}{name:23}{cells}')
    return '\n'.join(lines)


def main(argv: Sequence[str]) -> int:
    """Measure what is missing, and print the table."""
    parser = Parser(
        PROGRAM,
        'Measure step times of this checkout and another one in turn, on an emulated cluster. '
        'Printed: ms of a row over ms of compute alone, and ms of processor time beyond it.',
        EXAMPLE,
    )
    add = parser.add_argument
    add('before', type=Path, help='the other checkout')
    add('file', type=Path, help='for the measurements, one a line')
    add('--rounds', type=positive, default=3, metavar='N', help='runs of each model (3)')
    add('--models', nargs='+', choices=BATCHES, default=list(BATCHES), help='networks (all three)')
    add('--rates', nargs='+', default=['none', '1gbit', '100mbit', '10mbit'], metavar='RATE')
    arguments = parser.parse_args(argv)
    checkouts = {'before': arguments.before.resolve(), 'after': Path.cwd()}
    measured = json_lines(arguments.file)
    done = {Job(each['number'], each['model'], each['version']) for each in measured}
    for job in jobs(arguments.rounds, arguments.models):
        if job in done:
            continue
        log(f'round {job.number + 1}: {job.model}, {job.version}')
        scratch = arguments.file.resolve().with_suffix('.part')
        rows = run(job, checkouts[job.version], arguments.rates, scratch)
        scratch.unlink()
        measured.append({**job._asdict(), 'rows': rows})
        append_line(arguments.file, json.dumps(measured[-1]))
    print(table(measured))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
