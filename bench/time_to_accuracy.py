"""Draw the README's figure from stored measurements: ``python -m bench.time_to_accuracy``.

The left panel has measured seconds. The right one has the accuracies of a longer run, whose workers
were simulated, at the number of its steps times the measured seconds per step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.harness.cli import Parser

PROGRAM = 'bench.time_to_accuracy'
ROOT = Path(__file__).parents[1]
DATA = ROOT / 'docs/data/time_to_accuracy.json'
FIGURE = ROOT / 'docs/figures/time_to_accuracy.svg'
STYLES = {'DDP': ('#444444', 's'), 'DGC, 0.1 %': ('#3949ab', 'o'), 'DGC, 1 %': ('#7986cb', '^'),
          'gTop-k, 1 %': ('#00897b', 'v')}  # fmt: skip
MEASURED_STEPS = 78  # in an epoch of the run whose seconds are stored

Curve = list[tuple[float, float]]  # of seconds and accuracies in %


def composed(row: dict[str, Any], steps_per_epoch: int) -> Curve:
    """Return seconds and accuracy after each epoch: its steps times the measured time per step."""
    epoch = steps_per_epoch * row['seconds_per_78_steps'] / MEASURED_STEPS
    return [(epoch * (number + 1), accuracy) for number, accuracy in enumerate(row['accuracy'])]


def draw(data: dict[str, Any], file: Path) -> None:
    """Write the figure. The same data give the same bytes."""
    # The salt names what is drawn; else matplotlib draws it at random.
    with matplotlib.rc_context({'svg.hashsalt': 'dgc', 'font.size': 10}):
        figure = Figure(figsize=(9, 3.4), layout='constrained')
        left, right = figure.subplots(1, 2)
        reached, whole = data['reached'], data['composed']
        for row in reached['rows']:
            plot(left, row['name'], [(x, y) for x, y in row['points']])
        for row in whole['rows']:
            plot(right, row['name'], composed(row, whole['steps_per_epoch']))
        for axes, panel in ((left, reached), (right, whole)):
            axes.set_title(panel['title'], fontsize=10)
            axes.set_xlabel(f'seconds of training at {data["rate"]}')
            axes.grid(alpha=0.3)
            axes.legend(loc='lower right')
        left.set_ylabel('test accuracy in %')
        figure.savefig(file, format='svg', metadata={'Date': None})


def plot(axes: Axes, name: str, curve: Curve) -> None:
    """Draw one curve."""
    colour, marker = STYLES[name]
    axes.plot(*zip(*curve, strict=True), color=colour, marker=marker, markersize=4, label=name)


def main(argv: Sequence[str]) -> int:
    """Draw the figure; return the exit code."""
    parser = Parser(PROGRAM, f'Draw {FIGURE.relative_to(ROOT)} from {DATA.relative_to(ROOT)}.')
    parser.add_argument('--output', type=Path, default=FIGURE, metavar='FILE', help='SVG to write')
    arguments = parser.parse_args(argv)
    draw(json.loads(DATA.read_text()), arguments.output)
    print(arguments.output)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
