"""Two rows of a table beside each other, round by round: `python -m bench.pairs --help`."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import options

PROGRAM = 'bench.pairs'


class Pairs(NamedTuple):
    """What one row takes more than another, relative to the other: mean of the rounds, in which
    both had their turn one after the other, and its standard error."""

    rounds: int
    more: float
    error: float


def compare(ours: Sequence[float], other: Sequence[float]) -> Pairs:
    """From the times of each round. Raises ValueError where they are not pairs."""
    if len(ours) != len(other) or len(ours) < 2:
        raise ValueError(f'{len(ours)} and {len(other)} rounds are no pairs')
    ratios = [mine / its - 1 for mine, its in zip(ours, other, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Pairs(len(ratios), statistics.mean(ratios), error)


def report(rows: Sequence[dict[str, Any]], name: str, others: Sequence[str]) -> str:
    """What a person reads: a line for each rate and other row. Raises ValueError, KeyError."""
    times = {(row['rate'], row['name']): row['samples_ms'] for row in rows if 'error' not in row}
    lines = []
    for rate in dict.fromkeys(row['rate'] for row in rows):
        for other in others:
            pairs = compare(times[rate, name], times[rate, other])
            lines.append(
                f'{rate}: {name} takes {pairs.more:+.1%} ± {2 * pairs.error:.1%} of {other} '
                f'({pairs.rounds} pairs; two standard errors)'
            )
    return '\n'.join(lines)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = options.Parser(
        prog=f'python -m {PROGRAM}',
        description='Compare rows of a table that bench.cluster or bench.step wrote, by the rounds '
        'in which each had its turn, so that what slowed one down slowed the other too.',
        epilog="example: python -m bench.pairs table.json 'dgc merged (torch)' 'dgc whole (torch)'",
        allow_abbrev=False,
    )
    parser.add_argument('table', type=Path, help='what --json wrote')
    parser.add_argument('name', help='the row in question')
    parser.add_argument('others', nargs='+', help='the rows that it is compared with')
    arguments = parser.parse_args(argv)
    try:
        rows = json.loads(arguments.table.read_text())
        print(report(rows, arguments.name, arguments.others))
    except (OSError, ValueError, TypeError, KeyError) as error:
        return options.complain(PROGRAM, f'{arguments.table}: {error!r}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
