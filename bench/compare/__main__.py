"""The command line of bench.compare."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare.curves import Clock, measured_compute
from bench.compare.report import Group, grouped, stated_target, table
from bench.parity.measuring import measure, plan, reasons
from bench.parity.options import WHAT_THERE_IS, about, add_options, parsed
from bench.parity.training import Result
from dgc.costmodel import Network
from tools.cluster.rates import parse_rate
from tools.harness.cli import Parser, exit_on_signals, log, refuse
from tools.harness.launch import ROOT
from tools.harness.pages import write
from tools.harness.tables import number

PROGRAM = 'bench.compare'
PAGE = ROOT / 'docs/compare.md'
FIGURES = ROOT / 'docs/figures'
AXES = {'bytes': 'megabytes', 'seconds': 'seconds'}  # end of the name of a figure → axis
EXAMPLES = f"""\
examples: all methods on the digits and 10 Mbit/s, in the background, with three seeds each:
    nice -n 19 python -m bench.compare --workload digits --seeds 3 --other-seeds 3
  methods that send little, on a small GPT, on another link:
    python -m bench.compare --workload gpt-adamw --rows low-communication --data data \\
        --link 100mbit --latency 30
  what is measured so far, with other seconds, as figures; then the same in the documentation:
    python -m bench.compare --workload digits --table --link 1gbit --figures .
    python -m bench.compare --workload digits --table --write

Seconds are computed, on a virtual clock: steps × --compute, and for the messages of a step that
follow one another (counted in training) latency × messages + their bytes / rate. Nothing overlaps,
but fragments that travel during further steps. Without --compute it is the time of a step of one
worker in the dense run that took the least.

{WHAT_THERE_IS}"""


def parse(argv: Sequence[str]) -> Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Train a workload with each of several methods at equal epochs, and show what comes of it '
        'on a link: quality, bytes each way, and seconds to the end and to a quality.',
        EXAMPLES,
    )
    add = parser.add_argument
    add_options(parser, 'all,low-communication', ROOT / 'docs/data/compare.jsonl',
                Path('runs/compare'))  # fmt: skip
    add('--link', default='10mbit', metavar='RATE', help='of each worker (10mbit)')
    add('--latency', type=float, default=10.0, metavar='MS', help='of each message (10)')
    add('--compute', type=float, metavar='SECONDS', help='of a step without messages')
    add('--target', type=float, metavar='VALUE',
        help="of the metric, to be reached (within the workload's bound of dense training)",
        )  # fmt: skip
    add('--figures', type=Path, metavar='FOLDER', help='where to draw two figures as SVG')
    add('--write', action='store_true',
        help='write table and figures into the documentation (docs/compare.md)')  # fmt: skip
    arguments = parsed(parser, argv)
    try:
        rate = parse_rate(arguments.link)
        arguments.network = Network.of(rate, arguments.latency / 1e3)
        check(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def check(arguments: Namespace) -> None:
    """Raise ValueError for numbers that cannot be meant, and for a folder that is not there."""
    for name, least in (('latency', 'from 0 on'), ('compute', 'from 0 on')):
        value = getattr(arguments, name)
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f'--{name} is {least}, got {value}')
    if arguments.figures is not None and not arguments.figures.is_dir():
        raise ValueError(f'--figures: there is no folder {arguments.figures}')


def clock(lines: Sequence[Result], arguments: Namespace) -> Clock:
    """Return what seconds are computed from.

    Raises:
        ValueError: Where the seconds of a step are neither given nor measured.
    """
    compute = arguments.compute
    if compute is None:
        compute = measured_compute(line for line in lines if 'of_epochs' in line)
    if compute is None:
        raise ValueError(
            'no seconds of a step are known: give --compute SECONDS, or train the row dense with '
            'simulated workers'
        )
    return Clock(arguments.network, compute)


def report(
    groups: Sequence[Group],
    compute: float,
    target: float | None,
    failed: Mapping[str, str],
    arguments: Namespace,
) -> str:
    """Return the table, after a line that says what was trained and on which link.

    Args:
        groups: The rows that have results.
        compute: Seconds of a step.
        target: The quality to reach.
        failed: By row, what went wrong.
        arguments: Of the command line.
    """
    names, have = [row.name for row in arguments.compared], {group.name for group in groups}
    why = {**dict.fromkeys(names, 'not trained yet'), **reasons(arguments), **failed}
    missing = {name: reason for name, reason in why.items() if name not in have}
    title = (
        f'{about(arguments)}; links of {arguments.link} with {arguments.latency:g} ms per message; '
        f'{number(1e3 * compute)} ms of computing per step'
    )
    return f'{title}.\n\n{table(groups, arguments.what.metric, target, missing)}'


def images(workload: str) -> str:
    """Return the lines that show both figures on the page."""
    lines = [
        f'![{workload}: quality against {name}](figures/compare_{workload}_{name}.svg)'
        for name in AXES
    ]
    return '\n\n'.join(lines)


def figures(
    groups: Sequence[Group], target: float | None, arguments: Namespace, folder: Path
) -> None:
    """Draw quality against bytes and against seconds.

    Raises:
        ValueError: Where there is nothing to draw.
    """
    from bench.compare.plots import draw  # matplotlib takes a second to import

    if not any(group.curves for group in groups):
        raise ValueError('--figures, --write: nothing is measured yet')
    labels = {
        'bytes': 'MB that a worker has sent',
        'seconds': f'seconds of training at {arguments.link}, {arguments.latency:g} ms',
    }
    for name, axis in AXES.items():
        file = folder / f'compare_{arguments.workload}_{name}.svg'
        draw(groups, arguments.what.metric, target, axis, labels[name], file)
        log(str(file))


def main(argv: Sequence[str]) -> int:
    """Train, and print the table; return the exit code, 1 where a run failed."""
    arguments = parse(argv)
    exit_on_signals()
    try:
        results, failed = measure(plan(arguments), arguments)
        lines = [*results.values()]
        seconds = clock(lines, arguments)
        groups = grouped(lines, [row.name for row in arguments.compared], seconds)
        target = arguments.target
        if target is None:
            target = stated_target(groups, arguments.what.metric)
        text = report(groups, seconds.compute, target, failed, arguments)
        folders = [arguments.figures, FIGURES if arguments.write else None]
        for folder in filter(None, folders):
            figures(groups, target, arguments, folder)
        if arguments.write:
            write(PAGE, f'{text}\n\n{images(arguments.workload)}', arguments.workload)
    except (OSError, ValueError) as error:
        return refuse(PROGRAM, str(error))
    print(text)
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
