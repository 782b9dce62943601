"""Runs of train.py that a fault ends at random times, and that go on by the same command line."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.faults import trace
from tools.faults.trace import Step
from tools.harness.launch import ROOT, environment

TORCHRUN = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node']
LAUNCHERS: dict[str, list[str]] = {
    'alone': [],
    'torchrun 2': [*TORCHRUN, '2'],
    'torchrun 4': [*TORCHRUN, '4'],
    'horovodrun 2': ['--gloo', '-np', '2'],
}
RESTARTS = 3  # of torchrun --max-restarts
STACK = ['configs/digits/cnn.py', 'configs/dgc/wm5.py', 'configs/dgc/fp16.py']
STACK += ['tools/faults/traced.py']
SIGNALLED = 143  # exit code of train.py after SIGTERM
LIMIT = 400.0  # seconds until a start must have come to a step, or to its end
BALLAST = 48_000_000  # bytes in a checkpoint whose writing is to be met
POLL = 0.001  # seconds
PAUSE = 2.0  # seconds, between a step and a fault: up to two times as many
EARLY, START = 0.1, 10.0  # one start in ten is killed at once, within so many seconds


@dataclass(frozen=True)
class Plan:
    """What is done to one run.

    Attributes:
        kind: 'times': faults at random times; 'writes': kills while a checkpoint is written;
            'restarts': kills under torchrun --max-restarts.
        launcher: One of LAUNCHERS.
        number: Of the plan among those of its kind and launcher; it seeds what is drawn.
        epochs, steps: Of the run, and between its checkpoints.
        faults: How many there are, unless the run ends before.
    """

    kind: str
    launcher: str
    number: int
    epochs: int
    steps: int
    faults: int

    @property
    def ballast(self) -> int:
        """Bytes by which checkpoints are larger."""
        return BALLAST if self.kind == 'writes' else 0

    @property
    def restarts(self) -> bool:
        """Whether the launcher starts the ranks again."""
        return self.kind == 'restarts'


@dataclass
class Fault:
    """A fault that was done.

    Attributes:
        what: 'kill -9' or 'SIGTERM'.
        time: In seconds since 1970.
        ranks: How many processes it was sent to.
        partial: Bytes of the file of a checkpoint that was being written, which the killed process
            has left; None where there was none.
        again: Steps that were begun again.
        seconds: Until the next step.
    """

    what: str
    time: float
    ranks: int
    partial: int | None = None
    again: int | None = None
    seconds: float | None = None


@dataclass
class Run:
    """A run and its faults.

    Attributes:
        folder: Of its files.
        plan: What is done.
        seed: Of all plans.
        python: That runs train.py and torchrun.
        faults: So far.
        starts: Of the command line.
        wrong: What should not have been.
    """

    folder: Path
    plan: Plan
    seed: int
    python: str = sys.executable
    faults: list[Fault] = field(default_factory=list)
    starts: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.plan
        self.draw = random.Random(f'{self.seed} {plan.kind} {plan.launcher} {plan.number}')
        self.runs, self.trace = self.folder / 'runs', self.folder / 'trace.txt'

    def to_json(self) -> dict[str, Any]:
        """What is written of it in a line."""
        record = {**asdict(self.plan), 'seed': self.seed, 'starts': self.starts}
        return {**record, 'faults': [asdict(f) for f in self.faults], 'wrong': self.wrong}

    # ------------------------------------------------------------ starting

    def command(self) -> list[str]:
        """The one command line of all starts."""
        plan, words = self.plan, [self.python, *LAUNCHERS[self.plan.launcher]]
        if plan.launcher.startswith('horovodrun'):
            words[0] = str(Path(sys.executable).with_name('horovodrun'))
            words.append(self.python)
        if plan.restarts:
            words[3:3] = ['--max-restarts', str(RESTARTS)]
        words += ['train.py', '--configs', *STACK, '--devices', 'cpu']
        words += [f'--configs.train.num_epochs={plan.epochs}', '--configs.train.batch_size=32']
        words += [f'--configs.checkpoint.every_steps={plan.steps}']
        words += [f'--configs.model.ballast={plan.ballast}', '--name', 'run']
        return [*words, '--runs', str(self.runs), '--resume', 'auto']

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command line, in a session of its own."""
        variables = environment() | {'CUDA_VISIBLE_DEVICES': '', trace.PATH: str(self.trace)}
        with (self.folder / 'output.txt').open('ab') as file:
            return subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def train(self) -> None:
        """Train to the end, with the faults on the way."""
        while self.starts <= self.plan.faults + 1:
            self.starts += 1
            process, before = self.start(), len(self.faults)
            try:
                code = self.disturb(process)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if code == 0 or self.wrong:
                return
            if len(self.faults) == before:
                self.wrong.append(f'it ended by itself with {code}')
                return
            was_signal = self.faults[-1].what == 'SIGTERM'
            if self.plan.launcher == 'alone' and was_signal and not self.may_end(code):
                self.wrong.append(f'the exit code after SIGTERM was {code}')
        self.wrong.append('it did not come to its end')

    def may_end(self, code: int) -> bool:
        """Return whether a process that got SIGTERM may end with an exit code: by the signal itself
        only where all epochs were complete, while Python was shutting down."""
        metrics = self.runs / 'run' / 'metrics.jsonl'
        epochs = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        return code == SIGNALLED or (code == -signal.SIGTERM and epochs >= self.plan.epochs)

    def disturb(self, process: subprocess.Popen[bytes]) -> int:
        """Do faults to a start, until it ends; returns its exit code."""
        gone = {step.pid for step in trace.read(self.trace)}
        is_early = self.plan.kind == 'times' and self.draw.random() < EARLY
        most = self.plan.faults
        if len(self.faults) < most and is_early and self.kill_at_start(process):
            most = 0  # the start ends by it
        while len(self.faults) < most and self.wait_for_step(process, gone):
            if self.plan.kind == 'writes':
                done = self.kill_in_writing(process)
            else:
                done = self.fault_at_random(process, gone)
            gone = {step.pid for step in trace.read(self.trace)}
            if done and not self.plan.restarts:
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LIMIT)
        self.wrong.append(f'it had not ended {LIMIT:g} s after the last fault')
        return -1

    def wait_for_step(self, process: subprocess.Popen[bytes], gone: set[int]) -> bool:
        """Wait for a step of a process that is not among ``gone``; returns whether there is one."""
        deadline = time.monotonic() + LIMIT
        while process.poll() is None and time.monotonic() < deadline:
            if {step.pid for step in trace.read(self.trace)} - gone:
                return True
            time.sleep(0.05)
        return False

    # ------------------------------------------------------------ faults

    def kill_at_start(self, process: subprocess.Popen[bytes]) -> bool:
        """Kill all ranks at a random time after their start; returns whether there was one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.draw.uniform(0.0, START))
        return self.send(signal.SIGKILL, ranks(process))

    def fault_at_random(self, process: subprocess.Popen[bytes], gone: set[int]) -> bool:
        """Wait for a random time, then kill or signal a rank, or all; returns whether one was.

        Args:
            process: The start.
            gone: The processes that trained before it.
        """
        most = PAUSE * (1.0 + self.draw.random())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.draw.uniform(0.0, most))
        number = signal.SIGKILL
        if not self.plan.restarts:
            number = self.draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        victims = sorted({step.pid for step in trace.read(self.trace)} - gone)
        if process.poll() is not None:
            return False
        if self.draw.random() < 0.75:
            victims = [self.draw.choice(victims)]
        return self.send(number, victims)

    def kill_in_writing(self, process: subprocess.Popen[bytes]) -> bool:
        """Kill a rank when a drawn part of its file is written; returns whether one was."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.draw.uniform(0.0, 1.5))
        least = self.draw.uniform(0.02, 0.95) * self.plan.ballast
        while process.poll() is None:
            for path in (self.runs / 'run' / 'checkpoints').glob('e*.partial'):
                if size_of(path) >= least:
                    return self.kill_writer(path)
            time.sleep(POLL)
        return False

    def kill_writer(self, path: Path) -> bool:
        """Kill the rank that writes a file; notes how much of it there is when the rank is gone."""
        rank = int(path.name.split('.r')[-1].split('of')[0])
        pid = [step.pid for step in trace.read(self.trace) if step.rank == rank][-1]
        if not self.send(signal.SIGKILL, [pid]):
            return False
        wait_for_end(pid)
        size = size_of(path)
        self.faults[-1].partial = size if size >= 0 else None
        return True

    def send(self, number: signal.Signals, victims: Sequence[int]) -> bool:
        """Send a signal to processes; returns whether one of them was there."""
        when, sent = time.time(), 0
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, number)
                sent += 1
        if sent:
            what = 'kill -9' if number == signal.SIGKILL else number.name
            self.faults.append(Fault(what, when, sent))
        return bool(sent)

    def judge(self, reference: Sequence[Step]) -> None:
        """Count the steps that were begun again after each fault, and the seconds until then."""
        steps = trace.read(self.trace)
        if {(step.rank, step.key) for step in steps} - {(s.rank, s.key) for s in reference}:
            self.wrong.append('a step has a loss that the undisturbed run has not')
            return
        for fault in self.faults:
            gone = {step.pid for step in steps if step.time <= fault.time}
            later = [s.time for s in steps if s.time > fault.time and s.pid not in gone]
            fault.seconds = round(min(later) - fault.time, 1) if later else None
            fault.again = trace.steps_again(steps, reference, fault.time)


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
        if b'python' in words[0] and b'train.py' in words[1:4]:  # and not behind a launcher's words
            found.append(pid)
    return found


def size_of(path: Path) -> int:
    """The bytes of a file; -1 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def wait_for_end(pid: int) -> None:
    """Wait until a process that was killed is gone, or only waits for its parent."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        try:
            state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
        except OSError:
            return
        if state in 'ZX':
            return
        time.sleep(POLL)
