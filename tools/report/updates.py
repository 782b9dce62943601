"""updates.csv of a parameter server, summed up: staleness, and the updates of each worker."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIELDS = ('update', 'seconds', 'place', 'staleness', 'received', 'sent', 'elements')


def read_updates(path: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """Return sums over the lines of updates.csv; None where there is no file, or no update in it.

    Args:
        path: The file.
        report: Is called with a line of text where lines are damaged.

    Returns:
        staleness: Number of updates by staleness, from 0 on.
        workers: For each worker its updates, bytes and mean staleness.
        seconds: Time of the last update.
    """
    if not path.is_file():
        return None
    staleness: Counter[int] = Counter()
    sums: dict[int, Counter[str]] = {}
    seconds, damaged = 0.0, 0
    with path.open(newline='', errors='replace') as file:
        for row in list(csv.reader(line.replace('\0', '') for line in file))[1:]:
            try:
                if len(row) != len(FIELDS):
                    raise ValueError('another number of fields')
                time, (place, stale, received, sent) = float(row[1]), map(int, row[2:6])
            except ValueError:
                damaged += 1
                continue
            seconds = max(seconds, time)
            staleness[stale] += 1
            of_worker = sums.setdefault(place, Counter())
            of_worker.update(updates=1, received=received, sent=sent, staleness=stale)
    if damaged:
        lines = '1 line is' if damaged == 1 else f'{damaged} lines are'
        report(f'{path}: {lines} damaged, and left out')
    if not staleness:
        return None
    return {
        'staleness': [staleness[number] for number in range(max(staleness) + 1)],
        'workers': [worker(place, sums[place]) for place in sorted(sums)],
        'seconds': seconds,
    }


def worker(place: int, sums: Counter[str]) -> dict[str, float]:
    """The numbers of one worker."""
    updates = sums['updates']
    return {
        'worker': place,
        'updates': updates,
        'received': sums['received'],
        'sent': sums['sent'],
        'staleness': sums['staleness'] / updates,
    }
