"""Attacks on a server while workers train."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.faults.server.attacks import ATTACKS
from tools.faults.server.served import FILES, MEMORY, WORKERS, Setup, ended

SAMPLE = 0.05  # seconds between two looks at the server's memory
TRIES = 50  # of a stranger who asks for the number of updates
HEAD = (
    'attack',
    'amount',
    'updates/s before',
    'updates/s during',
    'memory of the server, MB',
    'open files',
)


@dataclass
class Watch:
    """What a process used at most, while a block runs.

    Attributes:
        memory: Resident bytes.
        files: Open files.
    """

    pid: int
    memory: int = 0
    files: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                pages = int(Path(f'/proc/{self.pid}/statm').read_text().split()[1])
                self.memory = max(self.memory, pages * os.sysconf('SC_PAGE_SIZE'))
                files = len(list(Path(f'/proc/{self.pid}/fd').iterdir()))
                self.files = max(self.files, files)


@dataclass
class Rate:
    """Updates per second while a block runs; 0 where the server does not answer."""

    setup: Setup
    value: float = 0.0

    def __enter__(self) -> Rate:
        self._start, self._first = time.monotonic(), self._version()
        return self

    def __exit__(self, *error: object) -> None:
        last = self._version()
        if self._first is not None and last is not None:
            self.value = round((last - self._first) / (time.monotonic() - self._start), 1)

    def _version(self) -> int | None:
        """The number of updates, for which a stranger may have to ask several times."""
        for _ in range(TRIES):
            version = self.setup.version()
            if version is not None:
                return version
            time.sleep(0.1)
        return None


def attack(
    folder: Path, seconds: float, seed: int, names: Sequence[str] = tuple(ATTACKS)
) -> Iterator[dict[str, object]]:
    """Attack a server at which workers train.

    Args:
        folder: For the run.
        seconds: Of each attack, and of the undisturbed training that it is compared with.
        seed: Of order, times and bytes.
        names: Of ATTACKS; they follow each other in an order that is drawn.

    Yields:
        A result an attack: its name; how much there was of it; updates a second before and during
        it; memory and files that the server used at most; and what should not have been.
    """
    draw = random.Random(f'{seed} attacks')
    order = list(names)
    draw.shuffle(order)
    setup = Setup(folder, is_wide=True)
    server = setup.serve(WORKERS + 1)
    processes = [server]
    with ended(processes):
        setup.wait_for_version(0, server)
        processes += [setup.work() for _ in range(WORKERS)]
        setup.wait_for_version(WORKERS, server)
        for name in order:
            time.sleep(draw.uniform(0.0, 1.0))
            with Rate(setup) as before:
                time.sleep(seconds)
            target = setup.target(seconds, draw)
            with Watch(server.pid) as watch, Rate(setup) as during:
                did = ATTACKS[name](target)
            alive = [process.poll() is None for process in processes]
            yield {
                'attack': name,
                'amount': did,
                'updates/s before': before.value,
                'updates/s during': during.value,
                'memory of the server, MB': round(watch.memory / 1e6),
                'open files': watch.files,
                'wrong': faults_of(alive, watch, during),
            }
            if not alive[0]:
                return


def faults_of(alive: Sequence[bool], watch: Watch, during: Rate) -> str:
    """What should not have been; '' for nothing.

    Args:
        alive: Whether the server and each worker runs.
        watch: What the server used.
        during: The rate of updates during the attack.
    """
    if not all(alive):
        return 'a worker has ended' if alive[0] else 'the server has ended'
    if watch.memory > MEMORY or watch.files > FILES:
        return 'the server exceeded its limits'
    return '' if during.value > 0 else 'the workers did not train on'
