"""Ways to train on several machines, measured side by side: `python -m bench.cluster --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench import options, report
from bench.gate import gate
from bench.launch import environment, launches, measure
from bench.rows import LAUNCHERS, ROWS
from bench.spec import write_json
from tools.cluster import Cluster, ClusterError, parse_rate, selftest
from tools.cluster.launchers import INTERFACE

PROGRAM = 'bench.cluster'
EXAMPLES = f"""\
example: everything, on four machines, at four rates:
    python -m bench.cluster --model vgg16 --batch 8 --nodes 4 \\
        --rates 10mbit 100mbit 1gbit none --json table.json
some rows, at one rate (the ratios need compute and ddp among them):
    python -m bench.cluster --rates 100mbit --only 'compute,ddp,dgc (torch)'

rows: {', '.join(dict.fromkeys(row.base for row in ROWS))}
A name stands for the row under each launcher; with the engine, as above, for one.

{report.LEGEND}
Exit status: 2 for what cannot be measured, 1 where no row could be.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = options.parser(
        PROGRAM,
        'Measure a training step, of ours and of others, with one worker on each node of an '
        'emulated cluster, at several rates of its links.',
        EXAMPLES,
    )
    add = parser.add_argument
    add('--nodes', type=options.positive, default=4, metavar='N', help='how many machines (4)')
    add('--rates', nargs='+', default=['100mbit'], metavar='RATE', help='of links; none: no limit')
    add('--launcher', choices=LAUNCHERS.values(), help='rows of this one only')
    arguments = parser.parse_args(argv)
    engines = tuple(e for e, its in LAUNCHERS.items() if arguments.launcher in (None, its))
    arguments.rows = options.chosen(parser, arguments, engines)
    if arguments.nodes < 2:
        parser.error('one node has nobody to exchange gradients with: --nodes 2 or more')
    try:
        for rate in arguments.rates:
            parse_rate(rate)
        arguments.cluster = Cluster(arguments.nodes)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def start(cluster: Cluster, rate: str, launcher: str, timeout: float, folder: Path) -> int:
    """Run the workers that ``folder`` has a spec for; returns their exit status.

    They make their rows on fast links, and measure them on slow ones.
    """
    cluster.set_rate('none')
    command = ['-m', 'bench.worker', str(folder / 'spec.json')]
    with gate(folder, partial(cluster.set_rate, rate)):
        return cluster.run(command, launcher, environment(), timeout, sys.stderr)


def measure_rate(
    cluster: Cluster, rate: str, arguments: argparse.Namespace, done: list[report.Result]
) -> list[report.Result]:
    """All rows at one rate; writes them with those ``done`` after every launch."""
    about = {key: getattr(arguments, key) for key in ('model', 'batch', 'nodes')} | {'rate': rate}
    ours: list[report.Result] = []
    for rows in launches(arguments.rows):
        launcher = LAUNCHERS[rows[0].engine]
        say(f'{rate}, {launcher}: {", ".join(row.name for row in rows)}')
        run = partial(start, cluster, rate, launcher, arguments.timeout)
        told, outcomes = measure(options.spec(arguments, INTERFACE), rows, run)
        ours += [report.result(row, {**about, **told}, outcomes[row.name]) for row in rows]
        ours = report.compare(report.in_order(ours))
        if arguments.json is not None:
            write_json(arguments.json, [*done, *ours])
    return ours


def check_links(cluster: Cluster, rate: str) -> None:
    """Say so where links do not hold the rate here. Raises ClusterError where that is unknown."""
    cluster.set_rate(rate)
    if rate != 'none':
        links = selftest.measure(cluster, bulk=False)
        if {link.verdict for link in links} != {'ok'}:
            say(f'links do not hold {rate}: is this machine busy?\n{selftest.table(links)}')


def say(text: str) -> None:
    """A line on stderr."""
    print(f'{time.strftime("%H:%M:%S")} {text}', file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    options.end_tidily()
    results: list[report.Result] = []
    try:
        with arguments.cluster as cluster:
            for rate in arguments.rates:
                check_links(cluster, rate)
                ours = measure_rate(cluster, rate, arguments, results)
                results += ours
                print(f'\n{report.title(ours)}\n{report.table(ours)}', flush=True)
    except ClusterError as error:
        return options.complain(PROGRAM, str(error))
    print(f'\n{report.closing(results)}')
    return int(all('error' in each for each in results))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
