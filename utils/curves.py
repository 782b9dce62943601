"""TensorBoard curves, written by the calling thread."""

from __future__ import annotations

import time
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from utils.files import saving

SECONDS_BETWEEN_FLUSHES = 120.0


class Curves:
    """An event file.

    tensorboardX's SummaryWriter writes on a thread of its own. Where the disk is full, that thread
    ends, and the training loop then waits for ever for room in its queue. Here the call that cannot
    write raises WriteError.

    Args:
        folder: Where the file is made.
        purge_step: The step from which on TensorBoard hides the points of earlier files.
        suffix: Appended to the name of the file.
    """

    def __init__(self, folder: Path, purge_step: int | None = None, suffix: str = '') -> None:
        self._folder = folder
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / 'events'), suffix)
            if purge_step is not None:
                start = SessionLog(status=SessionLog.START)
                self._writer.write_event(Event(step=purge_step, file_version='brain.Event:2'))
                self._writer.write_event(Event(step=purge_step, session_log=start))
        self.flush()

    def add(self, name: str, value: float, step: int) -> None:
        """Add a point to the curve ``name``."""
        event = Event(wall_time=time.time(), step=step, summary=scalar(name, value))
        with saving(self._folder):
            self._writer.write_event(event)
        if time.monotonic() > self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        with saving(self._folder):
            self._writer.flush()
        self._next_flush = time.monotonic() + SECONDS_BETWEEN_FLUSHES

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        with saving(self._folder):
            self._writer.close()
