"""The server's files: TensorBoard curves, a line per epoch, a line per update."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TextIO

from dgc.parameter_server import Entry, Observer, Update
from utils.curves import Curves
from utils.files import replacing
from utils.log import NO_SETTINGS, Metrics
from utils.meters import Ranking
from utils.progress import best_row, where_to_look
from utils.training.disk import Disk

UPDATES_BETWEEN_POINTS = 20
HEADER = 'update,seconds,place,staleness,received,sent,elements\n'

log = logging.getLogger(__name__)


class Sums:
    """Sums over some updates."""

    def __init__(self) -> None:
        self.updates = 0
        self.staleness = 0
        self.max_staleness = 0
        self.received = 0
        self.sent = 0
        self.elements = 0
        self.losses = 0  # reported by workers
        self.loss = 0.0  # their sum

    def add(self, update: Update) -> None:
        """Add one update."""
        self.updates += 1
        self.staleness += update.staleness
        self.max_staleness = max(self.max_staleness, update.staleness)
        self.received += update.received
        self.sent += update.sent
        self.elements += update.elements

    def add_losses(self, values: list[float]) -> None:
        """Add training losses."""
        self.losses += len(values)
        self.loss += sum(values)

    def numbers(self, numel: int) -> dict[str, float]:
        """The sums by their names in metrics.jsonl.

        'bytes/received' counts updates and 'bytes/sent' answers; 'ratio' is the density of both
        together.

        Args:
            numel: Elements of the model.
        """
        updates = max(self.updates, 1)
        return {
            **({'loss/train': self.loss / self.losses} if self.losses else {}),
            'staleness/mean': self.staleness / updates,
            'staleness/max': self.max_staleness,
            'bytes/received': self.received,
            'bytes/sent': self.sent,
            'bytes/dense': 2 * 4 * numel * self.updates,
            'ratio': self.elements / (2 * numel * updates),
        }


# What has points every UPDATES_BETWEEN_POINTS updates, and what the curves are drawn against.
OF_UPDATES = {*Sums().numbers(1), 'loss/train', 'updates', 'seconds'}


class ServerLog(Observer):
    """Writes curves against updates, epochs and seconds; metrics.jsonl; updates.csv.

    Args:
        updates_per_epoch: Updates of all workers in an epoch. It may be a fraction: an epoch ends
            with the first update behind it.
        end_epoch: Called with an epoch and its numbers when it has ended. They are passed to
            ``write`` once the model has been evaluated.
        disk: Where writing may fail: rows and points are lost then, the lines of epochs are written
            later.
        journal: Called with each update before it is acknowledged; None for no journal.
    """

    def __init__(
        self,
        updates_per_epoch: int | Fraction,
        end_epoch: Callable[[int, dict[str, float]], None],
        disk: Disk | None = None,
        journal: Callable[[Entry], None] | None = None,
    ) -> None:
        self._disk = disk or Disk()
        self._late: list[dict[str, float]] = []  # lines of epochs that could not be written yet
        self._journal = journal
        self._updates_per_epoch = updates_per_epoch
        self._end_epoch = end_epoch
        self._numel = 0
        self._earlier_seconds = 0.0  # before this process
        self._start = time.monotonic()
        self._of_epoch, self._of_point = Sums(), Sums()
        self._version = 0

    def open(
        self,
        folder: Path,
        numel: int,
        version: int | None,
        seconds: float,
        settings: Mapping[str, Any] = NO_SETTINGS,
    ) -> None:
        """Open the files.

        Args:
            folder: The run folder.
            numel: Elements of the model.
            version: Updates after which a run is resumed, whose files lose what is later; None for
                a new run.
            seconds: Time that the run has taken so far.
            settings: By which TensorBoard compares runs.
        """
        self._numel, self._version, self._earlier_seconds = numel, version or 0, seconds
        self._start = time.monotonic()
        resumed_at = None if version is None else self._epochs(version)
        self.metrics = Metrics(folder / 'metrics.jsonl', resumed_at)
        suffix, purge = '', None
        if version is not None:
            suffix, purge = f'.u{version:08d}', version + 1
        self._writer = Curves(folder, purge, suffix)
        self._writer.begin(settings)
        self._path = folder / 'updates.csv'
        self._updates = self._open_updates(version)

    @property
    def seconds(self) -> float:
        """Time since the run began, without the time in which no server ran."""
        return self._earlier_seconds + time.monotonic() - self._start

    def accepted(self, entry: Entry) -> None:
        """See Observer."""
        if self._journal is not None:
            self._journal(entry)

    def updated(self, update: Update) -> None:
        """See Observer."""
        self._version = update.version
        self._of_epoch.add(update)
        self._of_point.add(update)
        numbers = (update.slot, update.staleness, update.received, update.sent, update.elements)
        row = ','.join(map(str, numbers))
        with self._disk.tolerated(self._path):
            self._updates.write(f'{update.version},{self.seconds:.3f},{row}\n')
        if self._of_point.updates == UPDATES_BETWEEN_POINTS:
            self._curves(self._of_point.numbers(self._numel), update.version, self.seconds)
            self._of_point = Sums()
        epochs = self._epochs(update.version)
        if epochs > self._epochs(update.version - 1):
            numbers_of_epoch = {
                'updates': update.version,
                'seconds': self.seconds,
                **self._of_epoch.numbers(self._numel),
            }
            self._of_epoch = Sums()
            self._end_epoch(epochs - 1, numbers_of_epoch)

    def losses(self, slot: int, values: list[float]) -> None:
        """See Observer."""
        self._of_epoch.add_losses(values)
        self._of_point.add_losses(values)

    def write(self, epoch: int, numbers: dict[str, float]) -> None:
        """Write the line of an evaluated epoch, and a point of each curve that has none between."""
        self._late.append({'epoch': epoch, **numbers})
        of_epoch = {name: value for name, value in numbers.items() if name not in OF_UPDATES}
        self._curves(of_epoch, int(numbers['updates']), numbers['seconds'])
        self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        with self._disk.tolerated(self._path):
            while self._late:
                self.metrics.append(self._late[0])
                self._late.pop(0)
            self._writer.flush()
            self._updates.flush()

    def close(self) -> None:
        """Write what is buffered and close the files."""
        self.flush()
        with self._disk.tolerated(self._path):
            self._writer.close()
            self._updates.close()

    def _open_updates(self, version: int | None) -> TextIO:
        """Open updates.csv, cut to ``version`` (None: empty); count the lines of this epoch."""
        kept = [HEADER]
        for line, update in updates_lines(self._path) if version is not None else ():
            if update.version <= self._version:
                kept.append(f'{line}\n')
                if self._epochs(update.version - 1) == self._epochs(self._version):
                    self._of_epoch.add(update)
        with replacing(self._path) as file:
            file.write(''.join(kept).encode())
        return self._path.open('a')

    def _epochs(self, version: int) -> int:
        """Epochs that have ended after so many updates."""
        return int(version // self._updates_per_epoch)

    def _curves(self, numbers: dict[str, float], version: int, seconds: float) -> None:
        """Add points to the curves; in thousandths of epochs, as TensorBoard takes integers."""
        by_epoch = round(1000 * version / self._updates_per_epoch)
        with self._disk.tolerated(self._path):
            for name, value in numbers.items():
                self._writer.add(name, value, version)
                self._writer.add(f'by_second/{name}', value, round(seconds))
                self._writer.add(f'by_milliepoch/{name}', value, by_epoch)


def updates_lines(path: Path) -> Iterator[tuple[str, Update]]:
    """The lines of updates.csv behind its head; none where there is no file.

    A line that is cut, as by a kill, or damaged is skipped with a warning.
    """
    lines = path.read_text(errors='replace').split('\n') if path.is_file() else ['']
    last = lines.pop()  # '' behind the last line feed; a number may have lost its last digits
    for number, line in enumerate(lines[1:], 2):
        try:
            version, seconds, *others = line.split(',')
            float(seconds)
            update = Update(int(version), *map(int, others))
        except (ValueError, TypeError):
            log.warning('%s: line %d is damaged (%.20r), and is skipped', path, number, line)
        else:
            yield line, update
    if last:
        log.warning('%s: the last line is cut (%.20r), and is skipped', path, last)


def closing_table(
    epochs: Sequence[dict[str, float]], folder: Path, metric: str | None, which: Ranking
) -> str:
    """The summary of a run, as lines of text; '' where no epoch was evaluated."""
    if not epochs:
        return ''
    summed = ('bytes/received', 'bytes/sent', 'bytes/dense', 'staleness/mean')
    total = {name: sum(e[name] for e in epochs) for name in summed}
    dense = total['bytes/dense'] / 2
    last = epochs[-1]
    rows = {
        **best_row(metric, epochs, which),
        'updates': f'{last["updates"]:,} in {last["seconds"]:.1f} s',
        'bytes up': bytes_row(total['bytes/received'], dense),
        'bytes down': bytes_row(total['bytes/sent'], dense),
        'staleness': f'{total["staleness/mean"] / len(epochs):.2f} updates on average, '
        f'{max(e["staleness/max"] for e in epochs):.0f} at most',
        **where_to_look(folder),
    }
    width = max(map(len, rows))
    return '\n' + '\n'.join(f'{name:<{width}}  {value}' for name, value in rows.items())


def bytes_row(sent: float, dense: float) -> str:
    """Bytes in one direction, compared with those of dense training."""
    ratio = f'{dense / sent:,.1f}× fewer bytes'
    return f'{sent / 1e6:,.2f} MB; dense would be {dense / 1e6:,.2f} MB: {ratio}'
