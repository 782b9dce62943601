"""Reading files of JSON lines, with their damage. Imports the standard library only, for tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file, one in a line; none where there is no file.

    A line that is incomplete, as after a kill or while it is written, is skipped.
    """
    return [content for _, _, content in parsed_lines(path) if content is not None]


def parsed_lines(path: Path) -> Iterator[tuple[int, str, dict[str, Any] | None]]:
    """Each line of a file with its number, from 1, and the object in it; None where it has none."""
    lines = path.read_text(errors='replace').split('\n') if path.is_file() else ['']
    last = lines.pop()  # '' behind the last line feed
    for number, line in enumerate([*lines, last] if last else lines, 1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        yield number, line, content if isinstance(content, dict) else None


def metrics_lines(
    path: Path, report: Callable[[str], None] = log.warning
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of metrics.jsonl and their numbers; none where there is no file.

    A line that is cut, as by a kill, or damaged is skipped.

    Args:
        path: The file.
        report: Is called with a line of text about each line that is skipped.
    """
    for number, line, numbers in parsed_lines(path):
        if numbers is not None and type(numbers.get('epoch')) is int:
            yield line, numbers
        else:
            report(f'{path}: line {number} is damaged ({line!r:.20}), and is skipped')


def untimed(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a line, also of its ranks, but for seconds and speeds, which differ."""
    return {
        name: untimed(value) if isinstance(value, dict) else value
        for name, value in numbers.items()
        if not name.startswith(('seconds/', 'speed/'))
    }
