"""Groupings of layers, against all that there are: `python -m bench.merging --help`."""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from collections.abc import Iterator, Sequence

from bench import options
from dgc.planner.merging import exact, greedy
from dgc.timeline import Passage, end

PROGRAM = 'bench.merging'
SAME = 1e-9  # relative: what is closer is as good


class Layers:
    """Random ones: how far apart their gradients come, how large they are, what starting costs,
    and how a processor's time grows with the elements (below, as and above proportion)."""

    def __init__(self, seed: int, count: int) -> None:
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

    def together(self, first: int, stop: int) -> Passage:
        """The way of a group."""
        numel = sum(self.sizes[first:stop])
        work = self.work * (1 + numel**self.power)
        return Passage(
            self.ready[stop - 1], work, self.moving * numel, self.start + self.each * numel
        )

    def seconds(self, stops: Sequence[int]) -> float:
        """Of a step whose groups stop there."""
        groups = zip([0, *stops[:-1]], stops, strict=True)
        return end([self.together(*ends) for ends in groups], self.backward)

    def best(self) -> float:
        """Seconds of the best of all groupings."""
        return min(map(self.seconds, every_grouping(len(self.sizes))))

    def exact(self) -> float:
        """Seconds of what dynamic programming finds."""
        return self.seconds(exact(len(self.sizes), self.together, self.backward))

    def greedy(self) -> float:
        """Seconds of what the published rule finds."""
        return self.seconds(greedy(len(self.sizes), self.together, self.backward))


def every_grouping(count: int) -> Iterator[list[int]]:
    """All 2^(count-1), as the places where groups stop."""
    for cuts in itertools.product((False, True), repeat=count - 1):
        yield [*(place for place, cut in enumerate(cuts, 1) if cut), count]


def report(cases: int, most: int) -> str:
    """What a person reads, of random cases of 2 to ``most`` layers."""
    gaps: dict[str, list[float]] = {'exact': [], 'greedy': []}
    for seed in range(cases):
        layers = Layers(seed, 2 + seed % (most - 1))
        best = layers.best()
        gaps['exact'].append(layers.exact() / best - 1)
        gaps['greedy'].append(layers.greedy() / best - 1)
    lines = [f'{cases} random cases of 2 to {most} layers, beside the best of all groupings']
    for name, found in gaps.items():
        same = sum(gap <= SAME for gap in found)
        late = [gap for gap in found if gap > SAME] or [0.0]
        lines.append(
            f'{name:8} the best in {same} ({same / cases:.1%}); where not, longer by '
            f'{statistics.median(late):.1%} (median), {max(late):.1%} (most)'
        )
    return '\n'.join(lines)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = options.Parser(
        prog=f'python -m {PROGRAM}',
        description='Compare the exact and the greedy grouping of layers with the best of all '
        '2^(L-1) groupings, by predicted times of random layers.',
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('--cases', type=options.positive, default=1000, metavar='N', help='how many (1000)')
    add('--layers', type=options.positive, default=12, metavar='L', help='at most so many (12)')
    arguments = parser.parse_args(argv)
    if not 2 <= arguments.layers <= 20:
        parser.error(f'--layers must be from 2 to 20, got {arguments.layers}')
    print(report(arguments.cases, arguments.layers))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
