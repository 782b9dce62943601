"""Worlds of real processes that serve many tests: started once by a launcher, asked case by case.

A launcher takes seconds to start, most of them spent on imports. So a world stays, and its ranks
run functions by name (world_server.py). Tests of starting and ending start processes of their own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import warm
from world_server import ANSWER

ROOT = Path(__file__).parents[1]
SERVER = Path(__file__).with_name('world_server.py')
FOLDERS = [ROOT, ROOT / 'tests', ROOT / 'tests/dgc', ROOT / 'tests/train']  # of cases
LAUNCHERS = {
    'horovodrun': ['horovodrun', '--gloo', '-np', '{size}', sys.executable],
    'mpirun': ['mpirun', '--oversubscribe', '-mca', 'mpi_yield_when_idle', '1',
               '-np', '{size}', sys.executable],
    'python': [sys.executable],
    'torchrun': [sys.executable, '-m', 'torch.distributed.run', '--standalone',
                 '--nproc-per-node', '{size}'],
}  # fmt: skip
OF_LAUNCHERS = re.compile(r'(HOROVOD|OMPI|PMIX|SLURM|TORCHELASTIC)_|(RANK|WORLD_SIZE|MASTER_ADDR)$')
START = 120.0  # seconds until all ranks are there
CASE = 120.0  # seconds for one case
GRACE = 3.0  # seconds that other ranks have to answer once one has failed
MOST = 2  # worlds of one session that are alive at a time: ranks that wait take memory


def has_mpi() -> bool:
    """Whether mpirun is there and Horovod was built with MPI, which may have come later."""
    from dgc.engines import built_with_mpi

    return shutil.which('mpirun') is not None and built_with_mpi()


class WorldError(AssertionError):
    """A case failed on some rank, with that rank's traceback, or a rank did not answer."""


def environment(**more: str) -> dict[str, str]:
    """Ours without what a launcher left, one thread per process, and the path of the tests."""
    ours = {name: value for name, value in os.environ.items() if not OF_LAUNCHERS.match(name)}
    return ours | {
        'PYTHONPATH': os.pathsep.join(map(str, FOLDERS)),
        'PATH': f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}',
        'OMP_NUM_THREADS': '1',
        'OMPI_ALLOW_RUN_AS_ROOT': '1',
        'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
        **more,
    }


class World:
    """``size`` processes under a launcher.

    It starts with the first case, and again with the next one after a case that failed: ranks that
    left a collective early would answer the next case wrongly.
    """

    def __init__(self, launcher: str, size: int) -> None:
        self.launcher, self.size = launcher, size
        self._process: subprocess.Popen | None = None
        self._ranks: dict[int, Connection] = {}
        self._ids: list[int] = []  # of the ranks' processes
        self._folder = tempfile.TemporaryDirectory(prefix='world')
        self._log = Path(self._folder.name) / 'log'

    def run(self, case: str, *arguments: Any, seconds: float = CASE) -> list[Any]:
        """The results of a case, by rank.

        Args:
            case: 'module:function' in a file of the tests, called as function(engine, *arguments).
            seconds: after which the ranks' stacks are printed and the world ends.

        Raises:
            WorldError: with the traceback of each rank that failed, and the processes' output where
                a rank did not answer.
        """
        if self._process is None:
            self._start()
        try:
            message = pickle.dumps((case, arguments, max(seconds - 1, 1)))
            for connection in self._ranks.values():
                with contextlib.suppress(OSError):  # one that has ended is reported below
                    connection.send_bytes(message)
            return self._collect(case, time.monotonic() + seconds)
        except BaseException:
            self.close(kill=True)
            raise

    def _collect(self, case: str, deadline: float) -> list[Any]:
        waiting = {connection: rank for rank, connection in self._ranks.items()}
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        while waiting and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(waiting), left):
                rank = waiting.pop(connection)
                try:
                    kind, result = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    kind, result = 'ended', 'the process has ended\n'
                (results if kind == ANSWER else errors)[rank] = result
                if errors:
                    deadline = min(deadline, time.monotonic() + GRACE)
        if waiting or errors:
            raise WorldError(self._report(case, errors, sorted(waiting.values())))
        return [results[rank] for rank in range(self.size)]

    def _report(self, case: str, errors: dict[int, str], silent: list[int]) -> str:
        lines = [f'{case} under {self.launcher} with {self.size} ranks']
        lines += [f'rank {rank}: {errors[rank]}' for rank in sorted(errors)]
        if silent:
            lines.append(f'no answer from ranks {silent}')
        if silent or any('Traceback' not in error for error in errors.values()):
            lines.append(f'output of the processes:\n{self._output()}')
        return '\n'.join(lines)

    def _output(self) -> str:
        return self._log.read_text(errors='replace')[-6000:] if self._log.exists() else ''

    def _start(self) -> None:
        path = Path(self._folder.name) / 'socket'
        path.unlink(missing_ok=True)
        words = [word.format(size=self.size) for word in LAUNCHERS[self.launcher]]
        with socket.socket(socket.AF_UNIX) as listener, self._log.open('wb') as log:
            listener.bind(str(path))
            listener.listen(self.size)
            self._process = subprocess.Popen(
                warm.warmed([*words, str(SERVER), str(path)]),
                cwd=ROOT,
                env=environment() | warm.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            listener.settimeout(0.2)
            deadline = time.monotonic() + START
            while len(self._ranks) < self.size:
                try:
                    connection = Connection(listener.accept()[0].detach())
                except TimeoutError:
                    self._check_starting(deadline)
                    continue
                rank, identity = pickle.loads(connection.recv_bytes())
                self._ranks[rank] = connection
                self._ids.append(identity)

    def _check_starting(self, deadline: float) -> None:
        assert self._process is not None
        if self._process.poll() is not None or time.monotonic() > deadline:
            self.close(kill=True)
            raise WorldError(
                f'{self.launcher} did not start {self.size} ranks; output:\n{self._output()}'
            )

    def close(self, kill: bool = False) -> None:
        """End the processes: they close their engines themselves, unless they are killed."""
        process, self._process = self._process, None
        for connection in self._ranks.values():
            connection.close()
        if process is not None:
            if not kill:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=30)
            # Launchers start ranks in sessions of their own, which a signal to ours does not reach.
            for identity in self._ids if process.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(identity, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._ranks, self._ids = {}, []


class Worlds:
    """The worlds of one test session, the most recently used ones alive."""

    def __init__(self) -> None:
        self._alive: dict[tuple[str, int], World] = {}

    def __call__(self, launcher: str, size: int) -> World:
        """The world of ``size`` ranks under a launcher."""
        key = (launcher, size)
        world = self._alive.pop(key, None) or World(launcher, size)
        self._alive[key] = world
        while len(self._alive) > MOST:
            self._alive.pop(next(iter(self._alive))).close()
        return world

    def close(self, kill: bool = False) -> None:
        """End all. kill: at once; they would take seconds to close their engines."""
        while self._alive:
            self._alive.popitem()[1].close(kill)
