"""Where workers wait, once their rows are made, until the links are held to their rate.

A gate is a folder that both sides see. So what is sent once, such as first weights, does not pass a
slow link, on which it would take as long as many steps.
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

READY, OPEN = 'ready', 'open'
POLL = 0.02  # seconds


def wait_at(folder: Path, engine: Engine) -> None:
    """Workers: all of them have come here; go on when the gate is open."""
    engine.barrier()
    if engine.rank == 0:
        (folder / READY).touch()
        while not (folder / OPEN).exists():
            time.sleep(POLL)
    engine.barrier()


@contextmanager
def gate(folder: Path, prepare: Callable[[], None]) -> Iterator[None]:
    """Inside the `with` block, workers run: ``prepare()`` once all have come, then open.

    Raises what ``prepare()`` raised, when the block ends.
    """
    errors: list[BaseException] = []
    over = threading.Event()

    def keep() -> None:
        while not (folder / READY).exists():
            if over.wait(POLL):
                return
        try:
            prepare()
        except BaseException as error:  # of a thread: raised below
            errors.append(error)
        (folder / OPEN).touch()

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()
    if errors:
        raise errors[0]
