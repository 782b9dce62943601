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

from tools.harness.cli import Parser, exit_on_signals, log, non_negative, positive, refuse
from tools.harness.launch import ROOT, environment

PROGRAM = 'bench.chaos'
EXAMPLES = """\
example: four workers on the digits, a random one killed 20 times, the server 5 times:
    python -m bench.chaos --workers 4 --kill-workers 20 --kill-server 5 --epochs 130

All processes run on loopback. The kills are spread over the epochs; a killed process is started
again at once, the server with --resume. Exit status: 0 if training ended by itself after the last
kill and every process ended with 0.
"""
SETTINGS = {
    'configs.server.heartbeat': '0.5',
    'configs.server.timeout': '3.0',
    'configs.server.patience': '900.0',  # a busy machine takes long to start a server
    'configs.server.checkpoint_seconds': '2.0',
}
POLL = 0.1  # seconds
GRACE = 10.0  # seconds for workers to end after the server
SERVER = -1  # process number of the server; workers are numbered from 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        PROGRAM,
        'Train the digits asynchronously while processes are killed (kill -9).',
        EXAMPLES,
    )
    add = parser.add_argument
    add('--workers', type=positive, default=4, metavar='N', help='number of workers (4)')
    add('--kill-workers', type=non_negative, default=20, metavar='N',
        help='how often a random worker is killed (20)')  # fmt: skip
    add('--kill-server', type=non_negative, default=5, metavar='N',
        help='how often the server is killed (5)')  # fmt: skip
    add('--epochs', type=positive, default=130, help='number of epochs (130)')
    add('--stack', nargs='+', default=['configs/digits/cnn.py', 'configs/dgs/dgs.py'],
        metavar='FILE', help='configuration files (the digits, with DGS)')  # fmt: skip
    add('--seed', type=int, default=0, help='of the choice which process is killed when (0)')
    add('--timeout', type=float, default=1500.0, help='seconds for everything (1500)')
    return parser.parse_args(argv)


class Job:
    """A server and its workers as processes, which are started again after they were killed.

    Args:
        arguments: parsed command line.
        folder: for the run and for the output of all processes.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self.folder = folder
        self._log: IO[bytes] = (folder / 'output.txt').open('wb')
        self._address = f'127.0.0.1:{free_port()}'
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Job:
        for number in (SERVER, *range(self._arguments.workers)):
            self.start(number)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._log.close()

    def start(self, number: int, resume: bool = False) -> None:
        """Start the server or a worker. resume: the server continues from its checkpoint."""
        words = ['--configs', *self._arguments.stack, '--devices', 'cpu']
        words += ['--runs', str(self.folder / 'runs')]
        words += [f'--configs.train.num_epochs={self._arguments.epochs}']
        words += [f'--{name}={value}' for name, value in SETTINGS.items()]
        if number == SERVER:
            program = ['train.py', '--serve', self._address]
            program += [f'--configs.server.workers={self._arguments.workers}']
            program += ['--resume'] if resume else []
        else:
            program = ['train.py', f'--configs.server.address={self._address}']
        self._processes[number] = subprocess.Popen(
            [sys.executable, *program, *words],
            cwd=ROOT,
            env=os.environ | environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self, number: int) -> None:
        """Kill a process as `kill -9` does, and start it again."""
        self._processes[number].send_signal(signal.SIGKILL)
        self._processes[number].wait()
        self.start(number, resume=True)

    def status(self, number: int) -> int | None:
        """The exit status of a process; None while it runs."""
        return self._processes[number].poll()

    def wait(self, number: int, deadline: float) -> int | None:
        """Wait for a process; return its exit status, or None if it still runs at the deadline."""
        while self.status(number) is None and time.monotonic() < deadline:
            time.sleep(POLL)
        return self.status(number)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The metrics of the epochs so far."""
        files = list((self.folder / 'runs').glob('*/metrics.jsonl'))
        lines = files[0].read_text().splitlines() if files else []
        return [json.loads(line) for line in lines]


def free_port() -> int:
    """A free TCP port of this machine."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return int(listener.getsockname()[1])


def victims(arguments: argparse.Namespace) -> list[int]:
    """The numbers of the processes to kill, in order."""
    draw = random.Random(arguments.seed)
    workers = [draw.randrange(arguments.workers) for _ in range(arguments.kill_workers)]
    order = [*workers, *[SERVER] * arguments.kill_server]
    draw.shuffle(order)
    return order


def carry_out(arguments: argparse.Namespace, job: Job, deadline: float) -> str:
    """Kill the processes one after another and wait for the end of training.

    Returns:
        What went wrong; '' if nothing did.
    """
    order = victims(arguments)
    for kill, number in enumerate(order, 1):
        epochs = kill * arguments.epochs / (len(order) + 1)
        while len(job.metrics) < epochs:
            if job.status(SERVER) is not None or time.monotonic() > deadline:
                return f'the server ended, or the time limit was reached, before kill {kill}'
            time.sleep(POLL)
        log(f'kill {kill}: {"the server" if number == SERVER else f"worker {number}"}')
        job.kill(number)
    if (status := job.wait(SERVER, deadline)) != 0:
        return f'the server ended with {status}'
    for number in range(arguments.workers):
        status = job.wait(number, time.monotonic() + GRACE)
        if status not in (0, None):  # None: started after the server's end, it waits for a server
            return f'worker {number} ended with {status}'
    return ''


def main(argv: Sequence[str]) -> int:
    """Train, kill and print the result; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    start = time.monotonic()
    with TemporaryDirectory(prefix='bench') as name, Job(arguments, Path(name)) as job:
        problem = carry_out(arguments, job, start + arguments.timeout)
        if problem:
            log((job.folder / 'output.txt').read_text(errors='replace')[-3000:])
            return refuse(PROGRAM, problem)
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
