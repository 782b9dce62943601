"""Starting the workers of rows that share processes, until each is measured or known to fail."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.rows import Row
from bench.spec import Spec

ROOT = Path(__file__).parents[1]
TIMED_OUT = 124  # exit status, as of timeout(1)
TOLD = ('parameters', 'torch', 'dgc', 'threads')  # by workers, of themselves

Start = Callable[[Path], int]  # a folder with a spec.json → exit status of the workers


class Measured(NamedTuple):
    """about: what workers told of themselves. outcomes: by row, its samples or its error."""

    about: dict[str, Any]
    outcomes: dict[str, dict[str, Any]]


def launches(rows: Sequence[Row]) -> list[list[Row]]:
    """Which rows share processes: those of an engine, but for those that run alone, at the end."""
    together: dict[str, list[Row]] = {}
    for row in rows:
        together.setdefault(row.name if row.alone else row.engine, []).append(row)
    return sorted(together.values(), key=lambda group: group[0].alone)


def measure(spec: Spec, rows: Sequence[Row], start: Start) -> Measured:
    """Have ``rows`` measured by the workers that ``start`` starts.

    Where they break down, the row that they were at has failed, and the others begin again.

    spec: but for its rows and files.
    """
    about: dict[str, Any] = {}
    outcomes: dict[str, dict[str, Any]] = {}
    waiting = [row.name for row in rows]
    reason = why_not(rows[0].engine)
    while waiting and not reason:
        status, answer = launch(replace(spec, rows=waiting), start)
        about.update({name: answer[name] for name in TOLD if name in answer})
        if answer.get('now') == '':  # whatever came after that, all has been measured
            outcomes.update(answer['rows'])
            return Measured(about, outcomes)
        reason = ending(status)
        if answer.get('now') in waiting:
            outcomes[answer['now']] = {'error': reason}
            waiting.remove(answer['now'])
            reason = ''
    outcomes.update({name: {'error': reason} for name in waiting})
    return Measured(about, outcomes)


def launch(spec: Spec, start: Start) -> tuple[int, dict[str, Any]]:
    """The exit status of one set of workers, and their answer, empty where they gave none."""
    with TemporaryDirectory(prefix='bench') as name:
        folder = Path(name)
        answer = folder / 'answer.json'
        gate = name if spec.interface else ''
        replace(spec, answer=str(answer), gate=gate).write(folder / 'spec.json')
        status = start(folder)
        return status, json.loads(answer.read_text()) if answer.exists() else {}


def ending(status: int) -> str:
    """What an exit status says: 128 + n where signal n ended a worker."""
    if status == TIMED_OUT:
        return 'the workers did not end in time'
    if status - 128 in {*signal.valid_signals()}:
        return f'a worker was ended by {signal.Signals(status - 128).name}'
    return f'the workers ended with status {status}'


def why_not(engine: str) -> str:
    """Why no worker of this engine can be started; '' where it can."""
    if engine == 'horovod' and importlib.util.find_spec('horovod') is None:
        return 'Horovod is not installed: make horovod'
    return ''


def environment() -> dict[str, str]:
    """Variables for workers: one thread each, and this package found from any folder."""
    paths = [str(ROOT), os.environ.get('PYTHONPATH', '')]
    return {
        'PYTHONPATH': os.pathsep.join(filter(None, paths)),
        'OMP_NUM_THREADS': os.environ.get('OMP_NUM_THREADS', '1'),
    }
