"""Check hosts and network before training: `LAUNCHER … python -m tools.preflight`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial

import torch

import dgc
from dgc.engines import detect
from dgc.handshake import gather_text
from tools.harness.cli import BAD_INPUT, Parser, positive, report
from tools.preflight import cycles, host, verdict
from tools.preflight.measure import measure

PROGRAM = 'tools.preflight'
PATIENCE = 3.0  # seconds: a launcher ends all ranks when one fails, so one must print its message
LIMIT = 2048  # bytes of the description of a rank


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        PROGRAM,
        'Compare the versions on all hosts, show the interfaces in use, and measure latency and '
        'bandwidth between the hosts and what they mean for training. Run it under the launcher '
        'that will train, on the same hosts. Exit status: 2 if the hosts do not fit together.',
    )
    parser.add_argument(
        '--engine', choices=('horovod', 'torch', 'local'), help='as for training (by launcher)'
    )
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), default='cpu', help='to measure between (cpu)'
    )
    parser.add_argument(
        '--step', type=float, default=cycles.STEP, metavar='MS',
        help=f'of a step without exchange, for the recommended cycle of Horovod ({cycles.STEP:g})',
    )  # fmt: skip
    parser.add_argument(
        '--collectives', type=positive, default=cycles.COLLECTIVES, metavar='N',
        help=f'of a step, one a bucket of the plan ({cycles.COLLECTIVES})',
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if not 0 < arguments.step < float('inf'):
        parser.error(f'--step is in ms, above 0, got {arguments.step}')
    return arguments


def main(argv: Sequence[str]) -> int:
    """Check the hosts and print the report on rank 0; return the exit code."""
    arguments = parse(argv)
    try:
        launcher = detect()
    except dgc.EngineError as error:
        return refuse(str(error), True)
    gpu = arguments.device == 'cuda'
    device = torch.device('cuda', launcher.device_index) if gpu else torch.device('cpu')
    if reason := host.unreachable(launcher, os.environ):
        report(PROGRAM, f'rank {launcher.rank}: {reason}')
    try:
        engine = dgc.create(arguments.engine, device)
    except dgc.EngineError as error:
        return refuse(f'rank {launcher.rank}: {error}', launcher.local_rank == 0)
    own = host.this_rank(engine)
    hosts = [host.load(text) for text in gather_text(engine, own.dump(), device, LIMIT)]
    if different := verdict.mismatches(hosts):
        return refuse('; '.join(different), engine.rank == 0)
    if engine.size == 1:
        print(f'{verdict.versions_line(hosts)}\none rank: there is no network to measure')
        return 0
    measured = measure(engine, verdict.leaders(hosts), device)
    if engine.rank == 0:
        print(verdict.report(hosts, measured, engine.name, launcher.name), flush=True)
    engine.close()
    # Under MPI, Horovod cannot be started a second time in a process.
    if engine.name == 'horovod' and launcher.name == 'horovodrun':
        found = cycles.measure(partial(dgc.create, arguments.engine, device), device)
        if engine.rank == 0:
            sharing = max(each.local_size / each.cores for each in hosts)
            step = arguments.step, arguments.collectives, sharing
            print(f'\n{cycles.report(found, *step)}', flush=True)
    return 0


def refuse(message: str, prints: bool) -> int:
    """Print why the program ends, on the ranks that print; the others wait until it is printed."""
    if prints:
        report(PROGRAM, message)
    else:
        time.sleep(PATIENCE)
    return BAD_INPUT


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
