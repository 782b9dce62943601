"""Two rows of a table compared round by round: `python -m bench.pairs --help`."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.harness.cli import Parser, refuse

PROGRAM = 'bench.pairs'


class Pairs(NamedTuple):
    """How much longer one row takes than another, as a fraction of the other's time.

    rounds: number of rounds, in each of which the two rows were measured one after the other.
    more: mean over the rounds. error: standard error of that mean.
    """

    rounds: int
    more: float
    error: float


def compare(times: Sequence[float], others: Sequence[float]) -> Pairs:
    """Compare two rows by their times in each round. Raises ValueError if they are not pairs."""
    if len(times) != len(others) or len(times) < 2:
        raise ValueError(f'{len(times)} and {len(others)} rounds are no pairs')
    ratios = [own / other - 1 for own, other in zip(times, others, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Pairs(len(ratios), statistics.mean(ratios), error)


def report(rows: Sequence[dict[str, Any]], name: str, others: Sequence[str]) -> str:
    """A line for each rate and each other row. Raises ValueError or KeyError for missing rows."""
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
    """Print the comparison; return the exit code."""
    parser = Parser(
        PROGRAM,
        'Compare rows of a table that bench.cluster or bench.step wrote by the rounds in which '
        'each was measured, so that load on the machine affects both rows of a pair.',
        "example: python -m bench.pairs table.json 'dgc merged (torch)' 'dgc whole (torch)'",
    )
    parser.add_argument('table', type=Path, help='file that --json wrote')
    parser.add_argument('name', help='the row to compare')
    parser.add_argument('others', nargs='+', help='the rows that it is compared with')
    arguments = parser.parse_args(argv)
    try:
        rows = json.loads(arguments.table.read_text())
        print(report(rows, arguments.name, arguments.others))
    except (OSError, ValueError, TypeError, KeyError) as error:
        return refuse(PROGRAM, f'{arguments.table}: {error!r}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
