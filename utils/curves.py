"""TensorBoard curves, written by the calling thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import custom_scalars, histogram_raw, hparams, scalar
from torch import Tensor

from utils.files import saving

SECONDS_BETWEEN_FLUSHES = 120.0
BINS = 64  # of a histogram
PLAIN = (bool, int, float, str)  # types of settings that TensorBoard sorts and filters by

# Its page 'Custom scalars': charts by category, each of the curves that match.
LAYOUT = {
    'quality': {'accuracy': ['Multiline', ['acc/']], 'loss': ['Multiline', ['loss/']]},
    'traffic': {
        'bytes of an epoch': ['Multiline', ['bytes/sent', 'bytes/received', 'bytes/dense']],
        'density': ['Multiline', ['^ratio$']],
        'staleness': ['Multiline', ['^staleness/']],
    },
    'phases': {
        'the training loop, seconds of an epoch': [
            'Multiline',
            ['^seconds/compute$', '^seconds/wait$', '^seconds/save$'],
        ],
        "the engine's thread, seconds of an epoch": [
            'Multiline',
            ['^seconds/compress$', '^seconds/communicate$'],
        ],
    },
}


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
        self._end: Any = None
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
        self._write(event)
        if time.monotonic() > self._next_flush:
            self.flush()

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        """Add a histogram of ``values``, not empty."""
        low, high = float(values.min()), float(values.max())
        high = high if high > low else low + 1e-3
        counts = torch.histc(values, BINS, low, high).cpu()
        limits = torch.linspace(low, high, BINS + 1)[1:]
        sums = float(values.sum()), float((values * values).sum())
        numbers = low, high, len(values), *sums, limits.tolist(), counts.tolist()
        self._write(Event(wall_time=time.time(), step=step, summary=histogram_raw(name, *numbers)))

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write the settings by which TensorBoard compares runs, and the layout of its page.

        The columns of its page of hparams are then the settings and the curves of all runs.
        """
        plain = {name: value for name, value in settings.items() if isinstance(value, PLAIN)}
        others = {name: repr(value) for name, value in settings.items() if name not in plain}
        _, start, self._end = hparams({**plain, **others}, {})
        for summary in (start, custom_scalars(LAYOUT)):
            self._write(Event(wall_time=time.time(), summary=summary))

    def end(self) -> None:
        """Write that the run has ended, and not by an error."""
        if self._end is not None:
            self._write(Event(wall_time=time.time(), summary=self._end))

    def _write(self, event: Event) -> None:
        with saving(self._folder):
            self._writer.write_event(event)

    def flush(self) -> None:
        """Write what is buffered."""
        with saving(self._folder):
            self._writer.flush()
        self._next_flush = time.monotonic() + SECONDS_BETWEEN_FLUSHES

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        with saving(self._folder):
            self._writer.close()
