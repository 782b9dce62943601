"""All runs below some folders, as the data of the page and of ``--json``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.report.find import find
from tools.report.read import Run, is_number, mapping, read_run, shorten
from tools.report.state import locked_inodes
from tools.report.summary import is_dense, labels, summary, task_of

VERSION = 1
DIGITS = 6  # significant ones of the numbers of the page


def collect(paths: Sequence[Path]) -> tuple[list[Run], dict[str, str]]:
    """Read all runs below ``paths``; returns them, and why other paths are left out, by path."""
    found, locked = find(paths), locked_inodes()
    runs, skipped = [], dict(found.skipped)
    for folder in found.runs:
        try:
            runs.append(read_run(folder, locked))
        except OSError as error:
            skipped[str(folder)] = f'cannot be read ({error.strerror})'
    return runs, skipped


def page_data(runs: Sequence[Run], skipped: dict[str, str]) -> dict[str, Any]:
    """What the page shows, as JSON has it: no NaN, and numbers of six digits."""
    by_task: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[task_of(run)].append(run)
    named = {
        id(run): short
        for group in by_task.values()
        for run, short in zip(group, labels(group), strict=True)
    }
    return {
        'version': VERSION,
        'made': time.time(),
        'skipped': [{'path': path, 'reason': why} for path, why in skipped.items()],
        'runs': [row(run, named[id(run)]) for run in runs],
    }


def row(run: Run, short: str) -> dict[str, Any]:
    """One run."""
    numbers = summary(run)
    shorten(run)
    fields = asdict(run)
    keeps = (
        *('name', 'folder', 'settings', 'environment', 'updates', 'ranks', 'columns'),
        *('selection', 'notes'),
    )
    facts = {'samples': numbers_of(run.facts.get('samples'))}
    kept = {name: fields[name] for name in keeps}
    whole: dict[str, Any] = rounded(
        {
            **kept,
            'label': short,
            'task': task_of(run),
            'state': run.state.value,
            'written': run.written,
            'is_server': run.is_server,
            'is_dense': is_dense(run),
            'is_simulated': run.is_simulated,
            'facts': facts,
            'predicted': {**bytes_predicted(run), 'seconds': run.predicted},
            'summary': numbers,
        }
    )
    return whole


def bytes_predicted(run: Run) -> dict[str, Any]:
    """What run.json predicts of the bytes of a step; empty where it says nothing."""
    return numbers_of(run.facts.get('predicted'))


def numbers_of(value: object) -> dict[str, Any]:
    """The numbers of an object of JSON; empty where it is none."""
    return {name: each for name, each in mapping(value).items() if is_number(each)}


def rounded(value: Any) -> Any:
    """``value`` with floats of six significant digits, and None for those that are not finite."""
    if isinstance(value, float):
        if value != value or value in (float('inf'), float('-inf')):
            return None
        return value if value > 1e8 else float(f'{value:.{DIGITS}g}')
    if isinstance(value, dict):
        return {str(name): rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
