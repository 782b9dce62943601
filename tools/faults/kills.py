"""Runs of train.py that are killed at random times, and started again by the same command line."""

from __future__ import annotations

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
    'horovodrun 2': [
        *(str(Path(sys.executable).with_name('horovodrun')), '--gloo', '-np', '2'),
        sys.executable,
    ],
}
STACK = ['configs/digits/cnn.py', 'configs/dgc/wm5.py', 'configs/dgc/fp16.py']
SIGNALLED = 143  # exit code of train.py after SIGTERM
LIMIT = 300.0  # seconds for one start


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
        began = time.time()
        process = start(words, log)
        try:
            code, number = wait(process, folder / 'runs', draw, record, began, faults)
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


def wait(
    process: subprocess.Popen[bytes],
    runs: Path,
    draw: random.Random,
    record: Record,
    began: float,
    faults: int,
) -> tuple[int, int]:
    """Wait until training goes on, and for a random time; then kill or signal a rank.

    Returns:
        The exit code of the command, and the signal that was sent; 0 for none.
    """
    deadline = time.monotonic() + LIMIT
    while process.poll() is None and newest(runs) <= began and time.monotonic() < deadline:
        time.sleep(0.02)
    if record.faults and process.poll() is None:
        record.seconds.append(time.time() - began)
    pause = time.monotonic() + draw.uniform(0.0, 4.0)
    while process.poll() is None and time.monotonic() < pause:
        time.sleep(0.01)
    number = 0
    if process.poll() is None and record.faults < faults:
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        victims = ranks(process)
        if victims:
            os.kill(draw.choice(victims), number)
            record.faults += 1
    try:
        return process.wait(LIMIT), number
    except subprocess.TimeoutExpired:
        record.wrong.append(f'it had not ended {LIMIT:g} s after a fault')
        return -1, number
