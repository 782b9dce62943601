"""A gate: workers wait until the program that started them has changed the links.

Initial weights are sent once. On a slow link that would take as long as many steps, so the workers
start on fast links. A gate is a name in a folder that both the workers and the program that starts
them see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgc import Engine

START = 'start'  # of training, once all workers have built their networks
READY, OPEN = '{}.ready', '{}.open'
POLL = 0.02  # seconds


def wait_at(folder: Path, engine: Engine, name: str = START) -> None:
    """In a worker: wait for all other workers, then until the gate is open. A collective."""
    engine.barrier()
    if engine.rank == 0:
        (folder / READY.format(name)).touch()
        while not (folder / OPEN.format(name)).exists():
            time.sleep(POLL)
    engine.barrier()


@contextmanager
def gate(folder: Path, prepare: Callable[[], None], name: str = START) -> Iterator[None]:
    """Call ``prepare()`` once all workers wait at the gate, then open it.

    The workers run inside the `with` block.

    Raises:
        BaseException: what ``prepare()`` raised, when the block ends.
    """
    errors: list[BaseException] = []
    over = threading.Event()

    def watch() -> None:
        while not (folder / READY.format(name)).exists():
            if over.wait(POLL):
                return
        try:
            prepare()
        except BaseException as error:  # in a thread: raised below
            errors.append(error)
        (folder / OPEN.format(name)).touch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    if errors:
        raise errors[0]
