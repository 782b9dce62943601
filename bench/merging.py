"""Groupings of layers compared with the best of all: `python -m bench.merging --help`."""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from collections.abc import Iterator, Sequence

from dgc.planner.merging import exact, greedy
from dgc.timeline import BucketTimes, end
from tools.harness.cli import Parser, positive

PROGRAM = 'bench.merging'
SAME = 1e-9  # relative difference up to which two groupings are equally good


class Layers:
    """Random layers, and the predicted time of a step for each way to group them.

    Random are the intervals between gradients, the sizes, the fixed cost of a message, and how the
    processor time grows with the number of elements (sublinearly, linearly or superlinearly).
    """

    def __init__(self, seed: int, count: int, pipelined: bool = False) -> None:
        self.pipelined = pipelined
        draw = random.Random(seed)
        steps = [draw.choice((0.0, draw.uniform(0, 3))) for _ in range(count)]
        self.ready = list(itertools.accumulate(steps))
        self.sizes = [draw.choice((1, 10, 100)) * draw.uniform(0.5, 2) for _ in range(count)]
        self.backward = self.ready[-1] + draw.choice((0.0, 1.0))
        self.start = draw.choice((0.0, 0.3, 2.0))
        self.each = draw.choice((0.001, 0.02, 0.2))
        self.power = draw.choice((0.8, 1.0, 1.2))
        self.work = draw.choice((0.0, 0.01))
        self.moving = draw.choice((0.0, 0.005))

    def group_cost(self, first: int, stop: int) -> BucketTimes:
        """Return the predicted times of layers ``first`` … ``stop`` - 1 as one bucket."""
        numel = sum(self.sizes[first:stop])
        work = self.work * (1 + numel**self.power)
        return BucketTimes(
            self.ready[stop - 1], work, self.moving * numel, self.start + self.each * numel
        )

    def seconds(self, stops: Sequence[int]) -> float:
        """Predicted seconds of a step whose buckets stop before these layers."""
        groups = zip([0, *stops[:-1]], stops, strict=True)
        return end([self.group_cost(*ends) for ends in groups], self.backward, self.pipelined)

    def best(self) -> float:
        """Seconds of the best of all groupings."""
        return min(map(self.seconds, every_grouping(len(self.sizes))))

    def exact(self) -> float:
        """Seconds of the grouping that dynamic programming finds."""
        return self.seconds(exact(len(self.sizes), self.group_cost, self.backward, self.pipelined))

    def greedy(self) -> float:
        """Seconds of the grouping that the published greedy rule finds."""
        return self.seconds(greedy(len(self.sizes), self.group_cost, self.backward, self.pipelined))


def every_grouping(count: int) -> Iterator[list[int]]:
    """All 2^(count-1) groupings of layers, as the numbers that buckets stop before."""
    for cuts in itertools.product((False, True), repeat=count - 1):
        yield [*(place for place, cut in enumerate(cuts, 1) if cut), count]


def report(cases: int, most: int) -> str:
    """How far both algorithms are from the best, over random cases of 2 to ``most`` layers."""
    gaps: dict[str, list[float]] = {'exact': [], 'greedy': []}
    for seed in range(cases):
        layers = Layers(seed, 2 + seed % (most - 1))
        best = layers.best()
        gaps['exact'].append(layers.exact() / best - 1)
        gaps['greedy'].append(layers.greedy() / best - 1)
    lines = [f'{cases} random cases of 2 to {most} layers, beside the best of all groupings']
    for name, found in gaps.items():
        same = sum(gap <= SAME for gap in found)
        longer = [gap for gap in found if gap > SAME] or [0.0]
        lines.append(
            f'{name:8} the best in {same} ({same / cases:.1%}); where not, longer by '
            f'{statistics.median(longer):.1%} (median), {max(longer):.1%} (most)'
        )
    return '\n'.join(lines)


def main(argv: Sequence[str]) -> int:
    """Print the report; return the exit code."""
    parser = Parser(
        PROGRAM,
        'Compare the exact and the greedy grouping of layers with the best of all 2^(L-1) '
        'groupings, by predicted times of random layers.',
    )
    add = parser.add_argument
    add('--cases', type=positive, default=1000, metavar='N', help='number of cases (1000)')
    add('--layers', type=positive, default=12, metavar='L', help='layers of the largest case (12)')
    arguments = parser.parse_args(argv)
    if not 2 <= arguments.layers <= 20:
        parser.error(f'--layers must be from 2 to 20, got {arguments.layers}')
    print(report(arguments.cases, arguments.layers))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
