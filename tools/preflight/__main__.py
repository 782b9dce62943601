"""Check hosts and network before training: `LAUNCHER … python -m tools.preflight`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

import torch

import dgc
from dgc.engines import detect
from dgc.handshake import gather_text
from tools.preflight import host, verdict
from tools.preflight.measure import measure

BAD_INPUT = 2  # exit code
PATIENCE = 3.0  # seconds: launchers end all ranks once one has failed, so one must speak first
LIMIT = 2048  # bytes of what a rank says of itself


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog='python -m tools.preflight',
        description='Run it under the launcher that will train, on the same hosts: it compares '
        'versions, shows the interfaces in use, measures latency and bandwidth through the same '
        'engine, and says what they mean. Exit status 2 where hosts do not fit together.',
        allow_abbrev=False,
    )
    parser.add_argument('--engine', choices=('horovod', 'torch', 'local'), help='as for training')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='(cpu)')
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments, launcher = parse(argv), detect()
    gpu = arguments.device == 'cuda'
    device = torch.device('cuda', launcher.local_rank) if gpu else torch.device('cpu')
    if reason := host.unreachable(launcher, os.environ):
        print(f'tools.preflight: rank {launcher.rank}: {reason}', file=sys.stderr, flush=True)
    try:
        engine = dgc.create(arguments.engine, device)
    except dgc.EngineError as error:
        return complain(f'rank {launcher.rank}: {error}', launcher.local_rank == 0)
    ours = host.ours(launcher, engine.rank)
    hosts = [host.load(text) for text in gather_text(engine, ours.dump(), device, LIMIT)]
    if different := verdict.mismatches(hosts):
        return complain('; '.join(different), engine.rank == 0)
    if engine.size == 1:
        print(f'{verdict.versions_line(hosts)}\none rank: there is no network to measure')
        return 0
    measured = measure(engine, verdict.leaders(hosts), device)
    if engine.rank == 0:
        print(verdict.report(hosts, measured, engine.name, launcher.name), flush=True)
    engine.close()
    return 0


def complain(message: str, speaks: bool) -> int:
    """Say why the program ends, on the rank that speaks, while the others wait for it."""
    if speaks:
        print(f'tools.preflight: {message}', file=sys.stderr, flush=True)
    else:
        time.sleep(PATIENCE)
    return BAD_INPUT


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
