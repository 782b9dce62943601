"""A run folder as a ``Run``. What is damaged is named in ``notes``, and the rest is used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from tools.report.selection import read_selection
from tools.report.state import State, last_written, state_of
from tools.report.updates import read_updates
from utils.layers import LAYERS
from utils.lines import metrics_lines

Column = list[float | None]  # a number per epoch; None where it was not measured
MAX_EPOCHS = 600  # of which numbers are shown; of longer runs, some epochs are left out
MAX_NOTES = 6  # about one run


@dataclass
class Run:
    """What a run has left.

    Attributes:
        name: Of its folder.
        folder: Its path.
        state: Whether it goes on.
        written: When a file was written last, in seconds since 1970.
        is_server: It is the run of a parameter server.
        facts: run.json; empty where an earlier version made the run.
        settings: Every setting and its value, as text.
        environment: Versions, launcher and hosts.
        predicted: Seconds of a step that the planner predicted, by planner.
        columns: Numbers by epoch.
        epochs: How many were measured, also where columns leave some out.
        ranks: Of each rank, sums over the epochs, by name.
        updates: What ``read_updates`` returns.
        selection: What ``read_selection`` returns.
        notes: What is damaged or unusual, a line each.
    """

    name: str
    folder: str
    state: State = State.STOPPED
    written: float = 0.0
    is_server: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    epochs: int = 0
    ranks: dict[str, list[float]] = field(default_factory=dict)
    updates: dict[str, Any] | None = None
    selection: dict[str, Any] = field(default_factory=lambda: {'steps': [], 'layers': {}})
    notes: list[str] = field(default_factory=list)

    @property
    def workers(self) -> int | None:
        """Number of workers; None where no file says it."""
        number = self.facts.get('workers') or self.environment.get('workers')
        try:
            return int(number) if number is not None else None
        except (TypeError, ValueError):
            return None

    @property
    def is_simulated(self) -> bool:
        """Whether one process ran all workers in turn, so that its seconds mean little."""
        return self.environment.get('engine', self.facts.get('engine')) == 'simulated'

    def planned_epochs(self) -> int | None:
        """Epochs of the whole run; None where no file says it."""
        number = self.facts.get('epochs', self.settings.get('configs.train.num_epochs'))
        try:
            return int(number) if number is not None else None
        except (TypeError, ValueError):
            return None


def read_run(folder: Path, locked: frozenset[int] = frozenset()) -> Run:
    """Read a run folder.

    Args:
        folder: Its path.
        locked: ``tools.report.state.locked_inodes()``.

    Raises:
        OSError: Where the folder itself cannot be read.
    """
    run = Run(folder.name, str(folder), written=last_written(folder))
    note = noting(run.notes, folder)
    run.facts = json_object(folder / 'run.json', note)
    run.settings = text_pairs(folder / 'config.txt', ' = ', note)
    if not run.settings:
        run.settings = {k: str(v) for k, v in mapping(run.facts.get('settings')).items()}
    run.environment = text_pairs(folder / 'environment.txt', ': ', note)
    plan = json_object(folder / 'plan.json', note).get('predicted_seconds')
    run.predicted = {k: v for k, v in mapping(plan).items() if is_number(v)}
    lines = guarded(lambda: [n for _, n in metrics_lines(folder / 'metrics.jsonl', note)], note)
    fill(run, lines or [])
    run.updates = guarded(lambda: read_updates(folder / 'updates.csv', note), note)
    found = guarded(lambda: read_selection(folder / LAYERS, note), note)
    run.selection = found or run.selection
    run.is_server = run.updates is not None or 'updates' in run.columns
    add_totals(run)
    hosts = run.environment.get('hosts', '')
    run.state = state_of(folder, run.epochs, run.planned_epochs(), hosts, locked)
    if not run.epochs:
        run.notes.append('no epoch has been measured yet')
    return run


def noting(notes: list[str], folder: Path) -> Callable[[str], None]:
    """A function that adds a line to ``notes``, without the path of the folder, up to a limit."""

    def note(text: str) -> None:
        if len(notes) < MAX_NOTES:
            notes.append(text.replace(f'{folder}/', ''))
        elif len(notes) == MAX_NOTES:
            notes.append('more is damaged')

    return note


def guarded(read: Callable[[], Any], note: Callable[[str], None]) -> Any:
    """The result of ``read``; None, with a note, where the file cannot be read."""
    try:
        return read()
    except OSError as error:
        note(f'{error.filename}: cannot be read ({error.strerror})')
        return None


def json_object(path: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""

    def read() -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(errors='replace')) if path.is_file() else {}
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict):
            return content
        note(f'{path}: is damaged, and is left out')
        return {}

    return guarded(read, note) or {}


def text_pairs(path: Path, separator: str, note: Callable[[str], None]) -> dict[str, str]:
    """The lines ``name<separator>value`` of a file; a line of another form continues the value."""

    def read() -> dict[str, str]:
        found: dict[str, str] = {}
        name = ''
        for line in path.read_text(errors='replace').splitlines() if path.is_file() else ():
            first, found_separator, value = line.partition(separator)
            if found_separator and not line.startswith(' '):
                name, found[first] = first, value
            elif name:
                found[name] += f'\n{line}'
        if not found and path.is_file() and path.stat().st_size:
            note(f'{path}: has no line of the form NAME{separator}VALUE, and is left out')
        return found

    return guarded(read, note) or {}


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` where it is an object of JSON; else an empty one."""
    return value if isinstance(value, dict) else {}


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and not True or False."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def fill(run: Run, lines: list[dict[str, Any]]) -> None:
    """Set the columns and the sums of ranks from the lines of metrics.jsonl."""
    latest = {line['epoch']: line for line in lines}  # of an epoch that is there twice, the later
    if len(latest) < len(lines):
        run.notes.append('metrics.jsonl: has some epochs twice; the later lines are used')
    ordered = [latest[epoch] for epoch in sorted(latest)]
    run.epochs = ordered[-1]['epoch'] + 1 if ordered else 0
    names = dict.fromkeys(name for line in ordered for name in line if name != 'ranks')
    run.columns = {
        name: [line[name] if is_number(line.get(name)) else None for line in ordered]
        for name in names
        if any(is_number(line.get(name)) for line in ordered)
    }
    for line in ordered:
        for name, values in mapping(line.get('ranks')).items():
            if isinstance(values, list) and all(map(is_number, values)):
                sums = run.ranks.get(name, [0.0] * len(values))
                if len(sums) == len(values):
                    pairs = zip(sums, values, strict=True)
                    # Norms do not add up: the last epoch's counts.
                    is_sum = not name.startswith('norm/')
                    run.ranks[name] = [a * is_sum + b for a, b in pairs]


def add_totals(run: Run) -> None:
    """Add the columns that curves are drawn against, and those per step.

    'total/bytes': bytes that one worker has sent so far; with a server, the mean of the workers.
    'total/seconds': of training and saving so far, without evaluation; with a server, since its
    start. 'step/…': of one step, in seconds or bytes.
    """
    columns, workers = run.columns, run.workers or 1
    if 'epoch' not in columns:
        return
    if run.is_server:
        sent = scaled(columns.get('bytes/received'), 1 / workers)
        columns['total/seconds'] = columns.pop('seconds', [])
        samples = run.facts.get('samples_per_update')
        if isinstance(samples, int | float) and 'updates' in columns:
            columns['samples'] = scaled(columns['updates'], samples)
    else:
        sent = columns.get('bytes/sent', [])
        train, save = columns.get('seconds/train', []), columns.get('seconds/save')
        columns['total/seconds'] = running(train, save or [0.0] * len(train))
    columns['total/bytes'] = running(sent)
    steps = columns.get('steps') or steps_of(run)
    for name in ('compute', 'compress', 'communicate', 'wait'):
        columns[f'step/{name}'] = divided(columns.get(f'seconds/{name}', []), steps)
    columns['step/bytes'] = divided(sent, steps)
    run.columns = {n: each for n, each in columns.items() if any(x is not None for x in each)}


def steps_of(run: Run) -> Column:
    """Steps by epoch, for runs of earlier versions, whose metrics.jsonl has none."""
    count = len(run.columns['epoch'])
    updates = run.columns.get('updates')
    if run.is_server and updates:  # of all workers together; a step of one worker is P of them
        before = [0.0, *updates[:-1]]
        pairs = zip(updates, before, strict=True)
        workers = run.workers or 1
        return [None if a is None or b is None else (a - b) / workers for a, b in pairs]
    per_epoch = run.facts.get('steps_per_epoch')
    return [per_epoch if is_number(per_epoch) else None] * count


def scaled(column: Column | None, factor: float) -> Column:
    """A column times a factor."""
    return [None if value is None else value * factor for value in column or []]


def running(*columns: Column) -> Column:
    """Running sums of the sum of columns; an epoch without a number counts as 0."""
    sums = (sum(value or 0.0 for value in row) for row in zip(*columns, strict=True))
    return list(accumulate(sums))


def divided(column: Column, by: Column) -> Column:
    """A column divided by another."""
    pairs = zip(column, by, strict=False)
    return [None if a is None or not b else a / b for a, b in pairs]


def shorten(run: Run) -> None:
    """Leave out epochs of a long run, evenly; the last one stays, and running sums stay right."""
    count = len(run.columns.get('epoch', []))
    if count <= MAX_EPOCHS:
        return
    every = math.ceil(count / MAX_EPOCHS)
    kept = sorted({*range(every - 1, count, every), count - 1})
    run.columns = {n: [each[i] for i in kept] for n, each in run.columns.items()}
    run.notes.append(f'{count:,} epochs, of which every {every}th is drawn')
