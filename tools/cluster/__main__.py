"""Train on an emulated cluster: `python -m tools.cluster --help`."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tools.cluster import report, selftest
from tools.cluster.core import Cluster
from tools.cluster.launchers import LAUNCHERS
from tools.cluster.network import ClusterError

BAD_INPUT = 2  # exit code
EXAMPLES = """\
examples:
  four nodes at 1 Gbit/s, under torchrun:
    python -m tools.cluster --nodes 4 --rate 1gbit -- train.py --configs configs/digits/cnn.py
  the last of them on a slower link, under Horovod:
    python -m tools.cluster --nodes 4 --rate 1gbit --slow 3:100mbit --launcher horovodrun -- \\
        train.py --configs configs/digits/cnn.py configs/dgc/wm5.py
  whether links hold their rates here:
    python -m tools.cluster --nodes 4 --rate 100mbit --self-test

Exit status: 2 for what cannot be emulated, 1 for links that do not hold their rates, 124 after
--timeout, else that of the first worker that failed.
"""


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End the process."""
        raise SystemExit(complain(message, BAD_INPUT))


def complain(message: str, code: int) -> int:
    """Print the one line that says why the program ends; returns ``code``."""
    print(f'tools.cluster: {message}', file=sys.stderr, flush=True)
    return code


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog='python -m tools.cluster',
        description='Run a Python program as one worker on each node of an emulated cluster: '
        'network namespaces on a bridge, each link held to a rate in both directions.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('--nodes', type=int, default=4, help='how many machines (4)')
    add('--rate', default='none', help='of every link, such as 100mbit; none for no limit (none)')
    add('--slow', action='append', default=[], metavar='NODE:RATE', help="one node's own rate")
    add('--launcher', choices=LAUNCHERS, default=LAUNCHERS[0], help=f'({LAUNCHERS[0]})')
    add('--timeout', type=float, metavar='SECONDS', help='end the workers after this long')
    add('--self-test', action='store_true', help='only try whether the links hold their rates')
    add('--no-check', action='store_true', help='do not try the links before the workers start')
    add('command', nargs=argparse.REMAINDER, metavar='-- PROGRAM ...', help='as after `python`')
    arguments = parser.parse_args(argv)
    arguments.command = arguments.command[arguments.command[:1] == ['--'] :]
    if arguments.command[:1] in (['python'], ['python3']):  # which is ours, in every node
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
    """'3:100mbit' -> (3, '100mbit'). Raises ValueError."""
    node, colon, rate = text.partition(':')
    if not colon or not node.isdigit():
        raise ValueError(f'--slow takes a node and a rate, such as 3:100mbit, not {text!r}')
    return int(node), rate


def check(cluster: Cluster, whole: bool) -> int:
    """Try the links; returns an exit code. A second time where they seem slow, as on a machine that
    was busy for a moment. Workers may start on slow links, with a warning, but not on fast ones."""
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
        return complain('the links do not hold their rates here, so nothing was started', 1)
    if 'too slow' in verdicts:
        complain('going on, though links are slower than asked for: is this machine busy?', 0)
    return 0


def congestion_control() -> str:
    """The algorithm that decides how TCP fills a link, such as cubic or bbr."""
    return Path('/proc/sys/net/ipv4/tcp_congestion_control').read_text().strip()


def train(cluster: Cluster, arguments: argparse.Namespace) -> int:
    """Run the command and say what it sent; returns its exit status."""
    before = cluster.counters()
    status = cluster.run(arguments.command, arguments.launcher, timeout=arguments.timeout)
    traffic = report.since(before, cluster.counters())
    counted = report.counted_by_training(arguments.command, arguments.nodes) if not status else None
    print('\n' + report.traffic_table(cluster.names, traffic, counted), file=sys.stderr)
    return status


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has made it
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with arguments.cluster as cluster:
            if arguments.self_test:
                return check(cluster, whole=True)
            unlimited = all(map(math.isinf, cluster.rates))
            trusted = arguments.no_check or unlimited
            return (0 if trusted else check(cluster, whole=False)) or train(cluster, arguments)
    except ClusterError as error:
        return complain(str(error), BAD_INPUT)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
