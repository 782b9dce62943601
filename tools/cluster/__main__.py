"""Train on an emulated cluster: `python -m tools.cluster --help`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import report, selftest
from tools.cluster.core import Cluster
from tools.cluster.launchers import LAUNCHERS
from tools.cluster.network import ClusterError
from tools.harness import cli
from tools.harness.cli import Parser, exit_on_signals, refuse

PROGRAM = 'tools.cluster'
EXAMPLES = """\
examples:
  four nodes at 1 Gbit/s, under torchrun:
    python -m tools.cluster --nodes 4 --rate 1gbit -- train.py --configs configs/digits/cnn.py
  the last of them on a slower link, under Horovod:
    python -m tools.cluster --nodes 4 --rate 1gbit --slow 3:100mbit --launcher horovodrun -- \\
        train.py --configs configs/digits/cnn.py configs/dgc/wm5.py
  check that links hold their rates on this machine:
    python -m tools.cluster --nodes 4 --rate 100mbit --self-test

Exit status: 2 for invalid input, 1 if links do not hold their rates, 124 after --timeout, else that
of the first worker that failed.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Run a Python program as one worker on each node of an emulated cluster: network '
        'namespaces on a bridge, with each link limited to a rate in both directions.',
        EXAMPLES,
    )
    add = parser.add_argument
    add('--nodes', type=int, default=4, help='number of machines (4)')
    add('--rate', default='none', help='of all links, such as 100mbit; none: no limit (none)')
    add('--slow', action='append', default=[], metavar='NODE:RATE', help="rate of one node's link")
    add('--launcher', choices=LAUNCHERS, default=LAUNCHERS[0], help=f'({LAUNCHERS[0]})')
    add('--timeout', type=float, metavar='SECONDS', help='end the workers after this long')
    add('--self-test', action='store_true', help='only check that the links hold their rates')
    add('--no-check', action='store_true', help='do not check the links before the workers start')
    add('command', nargs=argparse.REMAINDER, metavar='-- PROGRAM ...', help='as after `python`')
    arguments = parser.parse_args(argv)
    arguments.command = arguments.command[arguments.command[:1] == ['--'] :]
    if arguments.command[:1] in (
        ['python'],
        ['python3'],
    ):  # implied: this interpreter, on every node
        del arguments.command[0]
    if bool(arguments.command) == arguments.self_test:
        parser.error('give a program after --, such as `-- train.py ...`, or --self-test alone')
    try:
        arguments.slow = dict(map(parse_slow, arguments.slow))
        arguments.cluster = Cluster(arguments.nodes, arguments.rate, arguments.slow)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def parse_slow(text: str) -> tuple[int, str]:
    """Parse a node and a rate, such as '3:100mbit' to (3, '100mbit'). Raises ValueError."""
    node, colon, rate = text.partition(':')
    if not colon or not node.isdigit():
        raise ValueError(f'--slow takes a node and a rate, such as 3:100mbit, not {text!r}')
    return int(node), rate


def check(cluster: Cluster, whole: bool) -> int:
    """Check that the links hold their rates; return an exit code.

    Links that seem slow are checked twice, since the machine may have been busy. Workers may start
    on links that are too slow, with a warning, but not on those that are too fast.

    Args:
        cluster: on which nothing runs.
        whole: also measure bulk rates, and print the table.
    """
    for _ in range(2):
        links = selftest.measure(cluster, bulk=whole)
        verdicts = {link.verdict for link in links}
        if 'too slow' not in verdicts:
            break
    if whole:
        print(selftest.table(links), flush=True)
        print(f'TCP congestion control of this machine: {congestion_control()}')
        return int(bool(verdicts & {'too fast', 'too slow'}))
    if verdicts & {'too fast', 'too slow'}:
        print(selftest.table(links), file=sys.stderr)
    if 'too fast' in verdicts:
        cli.report(
            PROGRAM, 'links are faster than their rates on this machine: nothing was started'
        )
        return 1
    if 'too slow' in verdicts:
        cli.report(PROGRAM, 'warning: links are slower than their rates: is this machine busy?')
    return 0


def congestion_control() -> str:
    """Name of the algorithm with which TCP fills a link, such as cubic or bbr."""
    return Path('/proc/sys/net/ipv4/tcp_congestion_control').read_text().strip()


def train(cluster: Cluster, arguments: argparse.Namespace) -> int:
    """Run the command and print what it sent; return its exit status."""
    before = cluster.counters()
    status = cluster.run(arguments.command, arguments.launcher, timeout=arguments.timeout)
    traffic = report.since(before, cluster.counters())
    counted = report.counted_by_training(arguments.command, arguments.nodes) if not status else None
    print('\n' + report.traffic_table(cluster.names, traffic, counted), file=sys.stderr)
    return status


def main(argv: Sequence[str]) -> int:
    """Carry out the command; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    try:
        with arguments.cluster as cluster:
            if arguments.self_test:
                return check(cluster, whole=True)
            unlimited = all(map(math.isinf, cluster.rates))
            trusted = arguments.no_check or unlimited
            return (0 if trusted else check(cluster, whole=False)) or train(cluster, arguments)
    except ClusterError as error:
        return refuse(PROGRAM, str(error))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
