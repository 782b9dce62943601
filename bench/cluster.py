"""Ways to train on several machines, measured side by side: `python -m bench.cluster --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench import options, report
from bench.launch import launches, measure
from tools.cluster import Cluster, ClusterError, parse_rate, selftest
from tools.cluster.launchers import INTERFACE
from tools.harness.cli import exit_on_signals, log, positive, refuse
from tools.harness.gate import gate
from tools.harness.launch import LAUNCHERS, environment
from tools.harness.spec import SPEC, write_json

PROGRAM = 'bench.cluster'
EXAMPLES = f"""\
example: everything, on four machines, at four rates:
    python -m bench.cluster --model vgg16 --batch 8 --nodes 4 \\
        --rates 10mbit 100mbit 1gbit none --json table.json
some rows, at one rate (for the ratios, include compute and ddp):
    python -m bench.cluster --rates 100mbit --only 'compute,ddp,dgc (torch)'

rows: compute, which exchanges nothing; DDP, PowerSGD and Horovod; ours. --list prints their names.
A name selects the row under each launcher; with the engine in brackets, as above, under one.

{report.LEGEND}
Exit status: 2 for invalid input, 1 if no row could be measured.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = options.parser(
        PROGRAM,
        'Measure a training step, of ours and of others, with one worker on each node of an '
        'emulated cluster, at several rates of its links.',
        EXAMPLES,
    )
    add = parser.add_argument
    add('--nodes', type=positive, default=4, metavar='N', help='number of machines (4)')
    add('--rates', nargs='+', default=['100mbit'], metavar='RATE',
        help='rates of the links; none: no limit (100mbit)')  # fmt: skip
    add('--launcher', choices=LAUNCHERS.values(), help='measure only rows under this one')
    arguments = parser.parse_args(argv)
    engines = tuple(e for e, its in LAUNCHERS.items() if arguments.launcher in (None, its))
    arguments.rows = options.chosen(parser, arguments, engines)
    if arguments.nodes < 2:
        parser.error('--nodes 1: a single node exchanges no gradients: give 2 or more')
    try:
        for rate in arguments.rates:
            parse_rate(rate)
        arguments.cluster = Cluster(arguments.nodes)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def start(cluster: Cluster, rate: str, launcher: str, timeout: float, folder: Path) -> int:
    """Run the workers of a folder with a specification; return their exit status.

    They make their rows on fast links and measure them on links of ``rate``.
    """
    cluster.set_rate('none')
    command = ['-m', 'bench.worker', str(folder / SPEC)]
    with gate(folder, partial(cluster.set_rate, rate)):
        return cluster.run(command, launcher, environment(), timeout, sys.stderr)


def measure_rate(
    cluster: Cluster, rate: str, arguments: argparse.Namespace, done: list[report.Result]
) -> list[report.Result]:
    """Measure all rows at one rate; after every launch, write them after those ``done`` before."""
    common = {key: getattr(arguments, key) for key in ('model', 'batch', 'nodes')} | {'rate': rate}
    results: list[report.Result] = []
    for rows in launches(arguments.rows):
        launcher = LAUNCHERS[rows[0].engine]
        log(f'{rate}, {launcher}: {", ".join(row.name for row in rows)}')
        run = partial(start, cluster, rate, launcher, arguments.timeout)
        about, outcomes = measure(options.spec(arguments, INTERFACE), rows, run)
        results += [report.result(row, {**common, **about}, outcomes[row.name]) for row in rows]
        results = report.compare(report.in_order(results))
        if arguments.json is not None:
            write_json(arguments.json, [*done, *results])
    return results


def check_links(cluster: Cluster, rate: str) -> None:
    """Set a rate, and warn if the links do not hold it. Raises ClusterError if it cannot try."""
    cluster.set_rate(rate)
    if rate != 'none':
        links = selftest.measure(cluster, bulk=False)
        if {link.verdict for link in links} != {'ok'}:
            log(f'links do not hold {rate}: is this machine busy?\n{selftest.table(links)}')


def main(argv: Sequence[str]) -> int:
    """Measure all rates and print their tables; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    results: list[report.Result] = []
    try:
        with arguments.cluster as cluster:
            for rate in arguments.rates:
                check_links(cluster, rate)
                measured = measure_rate(cluster, rate, arguments, results)
                results += measured
                print(f'\n{report.title(measured)}\n{report.table(measured)}', flush=True)
    except ClusterError as error:
        return refuse(PROGRAM, str(error))
    print(f'\n{report.closing(results)}')
    return int(all('error' in each for each in results))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
