"""Running the jobs of a launcher until all have ended, or one has failed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tools.cluster.launchers import ENTER, Job
from tools.cluster.output import STDERR, Pump, Untagged, labelled, to

STDOUT = 1
TIMED_OUT = 124  # exit status, as of timeout(1)
GRACE = 5.0  # seconds for the others to end by themselves once one has failed
PATIENCE = 5.0  # seconds for those that are asked to end
POLL = 0.02  # seconds


def enter(machine: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command on a machine of the cluster, out of reach of the terminal's Ctrl-C."""
    words = ['sh', str(ENTER), machine, shlex.join(command)]
    return subprocess.Popen(words, start_new_session=True, **options)


class Worker:
    """A job that runs, in a process group of its own.

    stdout: descriptor of the file that rank 0's goes to.
    """

    def __init__(self, job: Job, stdout: int) -> None:
        self._process = enter(
            job.machine,
            job.command,
            env=job.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout if job.rank == 0 else subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        sink = to(STDERR)
        if job.rank is None:
            sink = Untagged(stdout)
        elif job.rank > 0:
            sink = labelled(job.rank)
        pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        self._pumps = [Pump(pipe, sink, by_line=job.rank != 0) for pipe in pipes]

    def status(self) -> int | None:
        """None while it runs; then its exit status, 128 + n where signal n ended it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Send a signal to all of the job."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def finish(self) -> None:
        """Wait until all that it wrote has been handed on. Whoever could write must be gone."""
        for pump in self._pumps:
            pump.join(PATIENCE)


class Workers:
    """All jobs of one launch, started together; ended together when the `with` block is left.

    failures: the file to which every worker that fails adds its exit status; launchers hide it.
    """

    def __init__(self, jobs: Sequence[Job], stdout: int | IO[Any] | None, failures: Path) -> None:
        self._jobs = jobs
        self._stdout = STDOUT if stdout is None else stdout
        self._failures = failures
        self._workers: list[Worker] = []

    def __enter__(self) -> Workers:
        file = self._stdout if isinstance(self._stdout, int) else self._stdout.fileno()
        try:
            for job in self._jobs:
                self._workers.append(Worker(job, file))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def wait(self, timeout: float | None) -> int:
        """The exit status: that of the first worker that failed, else of the launcher; 124 after
        ``timeout`` seconds.

        Once one has failed, the others have GRACE seconds to say why and end.
        """
        failed = 0
        deadline = None if timeout is None else time.monotonic() + timeout
        while None in (states := [worker.status() for worker in self._workers]):
            if not failed and (failed := self._first_failure(states)):
                deadline = time.monotonic() + GRACE
            if deadline is not None and time.monotonic() > deadline:
                return failed or TIMED_OUT
            time.sleep(POLL)
        return failed or self._first_failure(states)

    def finish(self) -> None:
        """Wait until all output has been handed on. Whoever could write must be gone."""
        for worker in self._workers:
            worker.finish()

    def _first_failure(self, states: Sequence[int | None]) -> int:
        told = self._failures.read_text().splitlines() if self._failures.exists() else []
        return int(told[0]) if told else next(filter(None, states), 0)

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in self._workers:
                worker.send(number)
            deadline = time.monotonic() + PATIENCE
            while any(w.status() is None for w in self._workers) and time.monotonic() < deadline:
                time.sleep(POLL)
