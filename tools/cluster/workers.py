"""Running the jobs of a launcher until all of them have ended or one has failed."""

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
GRACE = 5.0  # seconds for the other workers to end after one has failed
PATIENCE = 5.0  # seconds for terminated workers to end
POLL = 0.02  # seconds


def enter(machine: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command on a machine of the cluster, which does not receive the terminal's Ctrl-C."""
    words = ['sh', str(ENTER), machine, shlex.join(command)]
    return subprocess.Popen(words, start_new_session=True, **options)


class Worker:
    """A running job, in a process group of its own.

    Args:
        job: to start.
        stdout: file descriptor for rank 0's standard output.
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
        """None while it runs; then its exit status, 128 + n if signal n ended it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Send a signal to all processes of the job."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def finish(self) -> None:
        """Wait until all its output has been passed on. All its processes must have ended."""
        for pump in self._pumps:
            pump.join(PATIENCE)


class Workers:
    """All jobs of one launch, started and ended together by a `with` block.

    Args:
        jobs: to start.
        stdout: file or descriptor for rank 0's standard output; None for that of this process.
        failures: file to which every worker that fails appends its exit status, since launchers do
            not return it.
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
        """Wait for the end of all jobs, or for GRACE seconds after the first failure.

        Returns:
            The exit status of the first worker that failed, else of the launcher; TIMED_OUT after
            ``timeout`` seconds.
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
        """Wait until all output has been passed on. All processes must have ended."""
        for worker in self._workers:
            worker.finish()

    def _first_failure(self, states: Sequence[int | None]) -> int:
        recorded = self._failures.read_text().splitlines() if self._failures.exists() else []
        return int(recorded[0]) if recorded else next(filter(None, states), 0)

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in self._workers:
                worker.send(number)
            deadline = time.monotonic() + PATIENCE
            while any(w.status() is None for w in self._workers) and time.monotonic() < deadline:
                time.sleep(POLL)
