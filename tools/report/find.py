"""Which of the given folders are runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MARKS = ('metrics.jsonl', 'config.txt', 'run.json')  # a run folder has one of these at least
DEPTH = 3  # of folders below a given one that are searched
INNER = ('checkpoints',)  # folders of a run that are not searched


class Found(NamedTuple):
    """The run folders, in order (run2 before run10), and why other paths are left out, by path."""

    runs: list[Path]
    skipped: dict[str, str]


def find(paths: Iterable[Path]) -> Found:
    """Return the run folders among ``paths`` and in them.

    A path that is given and holds no run is named in ``skipped``; so is a folder that cannot be
    read. A folder of other things below a given one is passed over without a word.
    """
    found = Found([], {})
    for path in paths:
        before = len(found.runs)
        search(path, DEPTH, found)
        if len(found.runs) == before and str(path) not in found.skipped:
            found.skipped[str(path)] = reason(path)
    unique = dict.fromkeys(path.resolve() for path in found.runs)
    return Found(sorted(unique, key=by_numbers), found.skipped)


def search(path: Path, depth: int, found: Found) -> None:
    """Add the runs at ``path`` and up to ``depth`` folders below it to ``found``."""
    try:
        if not path.is_dir():
            return
        if any((path / mark).exists() for mark in MARKS):
            found.runs.append(path)
            return
        inner = sorted(each for each in path.iterdir() if each.is_dir()) if depth else []
    except OSError as error:
        found.skipped[str(path)] = f'cannot be read ({error.strerror})'
        return
    for each in inner:
        if each.name not in INNER and not each.name.startswith('.'):
            search(each, depth - 1, found)


def by_numbers(path: Path) -> list[list[tuple[int, str]]]:
    """A key that sorts names as people count: digits by their value, all else as text."""
    return [
        [
            (int(piece), '') if piece.isdecimal() else (-1, piece)
            for piece in re.split(r'(\d+)', part)
        ]
        for part in path.parts
    ]


def reason(path: Path) -> str:
    """Why a given path holds no run."""
    if not path.exists():
        return 'does not exist'
    if not path.is_dir():
        return 'is a file, not a run folder'
    return f'holds no run: no folder in it has {", ".join(MARKS[:-1])} or {MARKS[-1]}'
