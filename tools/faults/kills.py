"""Runs of train.py that are killed at random times, and started again by the same command line."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.harness.launch import ROOT, environment

LAUNCHERS = {
    'alone': [sys.executable],
    'torchrun 2': [
        *(sys.executable, '-m', 'torch.distributed.run'),
        *('--standalone', '--nproc-per-node', '2'),
    ],
    'torchrun 2, restarts': [
        *(sys.executable, '-m', 'torch.distributed.run', '--max-restarts', '1000'),
        *('--standalone', '--nproc-per-node', '2'),
    ],
    'horovodrun 2': [
        *(str(Path(sys.executable).with_name('horovodrun')), '--gloo', '-np', '2'),
        sys.executable,
    ],
}
STACK = ['configs/digits/cnn.py', 'configs/dgc/wm5.py', 'configs/dgc/fp16.py']
SIGNALLED = 143  # exit code of train.py after SIGTERM
LIMIT = 300.0  # seconds for one start
MOST_SECONDS = 4.0  # of training between two faults
NOTICE = 5.0  # seconds in which a launcher ends the other ranks


@dataclass
class Record:
    """What happened to a run.

    Attributes:
        faults: Kills and signals.
        starts: Of the command line, beside restarts by the launcher.
        seconds: From each fault to the next step.
        wrong: What should not have been.
    """

    faults: int = 0
    starts: int = 0
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def command(launcher: str, runs: Path, epochs: int, steps: int) -> list[str]:
    """The one command line of all starts."""
    settings = [
        f'--configs.train.num_epochs={epochs}',
        '--configs.train.batch_size=64',
        f'--configs.checkpoint.every_steps={steps}',
    ]
    words = ['train.py', '--configs', *STACK, '--devices', 'cpu', *settings]
    return [*LAUNCHERS[launcher], *words, '--runs', str(runs), '--resume', 'auto']


def start(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command; its output is appended to ``log``."""
    with log.open('ab') as file:
        return subprocess.Popen(
            words,
            cwd=ROOT,
            env=os.environ | environment() | {'CUDA_VISIBLE_DEVICES': ''},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def below(pid: int) -> Iterator[int]:
    """The processes that a process has started, and theirs."""
    for path in Path(f'/proc/{pid}/task').glob('*/children'):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            yield child
            yield from below(child)


def ranks(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that train."""
    found = []
    for pid in [process.pid, *below(process.pid)]:
        try:
            words = Path(f'/proc/{pid}/cmdline').read_bytes().split(b'\0')
        except OSError:
            continue
        is_python = b'python' in words[0]
        if is_python and (b'train.py' in words[1:3] or words[2:3] == [b'train.py']):
            found.append(pid)
    return found


def newest(runs: Path) -> float:
    """When a file of a checkpoint was written last; 0 where there is none."""
    times = []
    for path in runs.glob('*/checkpoints/*'):
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # removed since
            continue
    return max(times, default=0.0)


def run(launcher: str, folder: Path, epochs: int, steps: int, faults: int, seed: int) -> Record:
    """Train to the end, with ``faults`` kills and signals on the way.

    Args:
        launcher: One of LAUNCHERS.
        folder: For the run.
        epochs: To train.
        steps: Between checkpoints.
        faults: How many there are, unless the run ends before: two in three are kill -9 of a random
            rank, the others SIGTERM to one.
        seed: Of times and ranks.
    """
    draw, record = random.Random(f'{seed} {launcher}'), Record()
    words, log = command(launcher, folder / 'runs', epochs, steps), folder / 'output.txt'
    while record.starts <= faults + 1:
        record.starts += 1
        process = start(words, log)
        try:
            code, number = disturb(process, launcher, folder / 'runs', draw, record, faults)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code == 0:
            return record
        if not number:
            record.wrong.append(f'it ended by itself with {code}')
            return record
        if launcher == 'alone' and number == signal.SIGTERM and code != SIGNALLED:
            record.wrong.append(f'the exit code after SIGTERM was {code}')
    record.wrong.append('it did not come to its end')
    return record


def disturb(
    process: subprocess.Popen[bytes],
    launcher: str,
    runs: Path,
    draw: random.Random,
    record: Record,
    faults: int,
) -> tuple[int, int]:
    """Wait until training goes on, and for a random time; then kill or signal a rank.

    Under a launcher that starts ranks again, again and again.

    Returns:
        The exit code of the command, and the signal that was sent last; 0 for none.
    """
    number, since = 0, time.time()  # since when checkpoints are those of a new start
    fault = since
    while wait_for_step(process, runs, since) and record.faults < faults:
        if record.faults:
            record.seconds.append(time.time() - fault)
        pause(process, draw.uniform(0.0, MOST_SECONDS))
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        fault = since = time.time()
        if not send(process, number, draw):
            continue
        record.faults += 1
        if 'restarts' not in launcher:
            break
        pause(process, NOTICE)  # until it has ended all ranks, which SIGTERM makes save
        since = time.time()
    try:
        return process.wait(LIMIT), number
    except subprocess.TimeoutExpired:
        record.wrong.append(f'it had not ended {LIMIT:g} s after the last fault')
        return -1, number


def wait_for_step(process: subprocess.Popen[bytes], runs: Path, since: float) -> bool:
    """Wait until a checkpoint is written after ``since``; returns whether the process lives."""
    deadline = time.monotonic() + LIMIT
    while process.poll() is None and newest(runs) <= since and time.monotonic() < deadline:
        time.sleep(0.02)
    return process.poll() is None


def pause(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for some seconds, or until the process ends."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def send(process: subprocess.Popen[bytes], number: int, draw: random.Random) -> bool:
    """Send a signal to a random rank; returns whether there was one."""
    victims = ranks(process)
    if not victims or process.poll() is not None:
        return False
    try:
        os.kill(draw.choice(victims), number)
    except ProcessLookupError:
        return False
    return True
