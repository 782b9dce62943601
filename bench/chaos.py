"""Training while workers and the server are killed: `python -m bench.chaos --help`."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from bench import options
from bench.launch import ROOT, environment

PROGRAM = 'bench.chaos'
EXAMPLES = """\
example: four workers on the digits, a random one killed 20 times, the server 5 times:
    python -m bench.chaos --workers 4 --kill-workers 20 --kill-server 5 --epochs 130

Everything is started by hand, on loopback. The kills are spread over the epochs; whoever was killed
is started again at once, the server with --resume. Exit status: 0 where training ended by itself
after the last kill, and nobody with another status.
"""
SETTINGS = {
    'configs.server.heartbeat': '0.5',
    'configs.server.timeout': '3.0',
    'configs.server.patience': '900.0',  # a busy machine takes long to start a server
    'configs.server.checkpoint_seconds': '2.0',
}
POLL = 0.1  # seconds
GRACE = 10.0  # seconds for workers to end after the server
SERVER = -1  # in the place of a worker's number


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = options.Parser(
        prog=f'python -m {PROGRAM}',
        description='Train the digits asynchronously while processes are killed (kill -9).',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('--workers', type=options.positive, default=4, metavar='N', help='how many train (4)')
    add('--kill-workers', type=count, default=20, metavar='N', help='a random one, so often (20)')
    add('--kill-server', type=count, default=5, metavar='N', help='so often (5)')
    add('--epochs', type=options.positive, default=130, help='to train (130)')
    add('--stack', nargs='+', default=['configs/digits/cnn.py', 'configs/dgs/dgs.py'])
    add('--seed', type=int, default=0, help='draws who is killed (0)')
    add('--timeout', type=float, default=1500.0, help='seconds for all of it (1500)')
    return parser.parse_args(argv)


class Job:
    """A server and its workers, each a process that is started again when it was killed.

    folder: for the run and for what they say.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self.folder = folder
        self._log: IO[bytes] = (folder / 'output.txt').open('wb')
        self._address = f'127.0.0.1:{free_port()}'
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Job:
        for who in (SERVER, *range(self._arguments.workers)):
            self.start(who)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._log.close()

    def start(self, who: int, resume: bool = False) -> None:
        """Start the server or a worker."""
        words = ['--configs', *self._arguments.stack, '--devices', 'cpu']
        words += ['--runs', str(self.folder / 'runs')]
        words += [f'--configs.train.num_epochs={self._arguments.epochs}']
        words += [f'--{name}={value}' for name, value in SETTINGS.items()]
        if who == SERVER:
            program = ['train.py', '--serve', self._address]
            program += [f'--configs.server.workers={self._arguments.workers}']
            program += ['--resume'] if resume else []
        else:
            program = ['train.py', f'--configs.server.address={self._address}']
        self._processes[who] = subprocess.Popen(
            [sys.executable, *program, *words],
            cwd=ROOT,
            env=os.environ | environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self, who: int) -> None:
        """As `kill -9` does, and start it again."""
        self._processes[who].send_signal(signal.SIGKILL)
        self._processes[who].wait()
        self.start(who, resume=True)

    def status(self, who: int) -> int | None:
        """None while it runs."""
        return self._processes[who].poll()

    def wait(self, who: int, deadline: float) -> int | None:
        """The exit status; None where it runs on."""
        while self.status(who) is None and time.monotonic() < deadline:
            time.sleep(POLL)
        return self.status(who)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The run's epochs so far."""
        files = list((self.folder / 'runs').glob('*/metrics.jsonl'))
        lines = files[0].read_text().splitlines() if files else []
        return [json.loads(line) for line in lines]


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return int(one.getsockname()[1])


def count(text: str) -> int:
    """A whole number from 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f'{text} is less than 0')
    return number


def victims(arguments: argparse.Namespace, draw: random.Random) -> list[int]:
    """Who is killed, in order."""
    workers = [draw.randrange(arguments.workers) for _ in range(arguments.kill_workers)]
    order = [*workers, *[SERVER] * arguments.kill_server]
    draw.shuffle(order)
    return order


def carry_out(arguments: argparse.Namespace, job: Job, deadline: float) -> str:
    """Kill them all, one after another, and wait for the end; returns what went wrong, or ''."""
    draw = random.Random(arguments.seed)
    order = victims(arguments, draw)
    for number, who in enumerate(order, 1):
        epochs = number * arguments.epochs / (len(order) + 1)
        while len(job.metrics) < epochs:
            if job.status(SERVER) is not None or time.monotonic() > deadline:
                return f'the server ended, or the time, before kill {number}'
            time.sleep(POLL)
        say(f'kill {number}: {"the server" if who == SERVER else f"worker {who}"}')
        job.kill(who)
    if (status := job.wait(SERVER, deadline)) != 0:
        return f'the server ended with {status}'
    for who in range(arguments.workers):
        status = job.wait(who, time.monotonic() + GRACE)
        if status not in (0, None):  # None: it was started too late, and waits for a server
            return f'worker {who} ended with {status}'
    return ''


def say(text: str) -> None:
    """A line on stderr."""
    print(f'{time.strftime("%H:%M:%S")} {text}', file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    options.end_tidily()
    start = time.monotonic()
    with TemporaryDirectory(prefix='bench') as name, Job(arguments, Path(name)) as job:
        trouble = carry_out(arguments, job, start + arguments.timeout)
        if trouble:
            say((job.folder / 'output.txt').read_text(errors='replace')[-3000:])
            return options.complain(PROGRAM, trouble)
        last = job.metrics[-1]
    rows = {
        'workers killed': arguments.kill_workers,
        'server killed': arguments.kill_server,
        'updates in the model': f'{last["updates"]:,}',
        'test accuracy at the end': f'{last["acc/test_top1"]:.2f}',
        'seconds': f'{time.monotonic() - start:.0f}',
    }
    print('\n'.join(f'{name:<26}{value}' for name, value in rows.items()), flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
