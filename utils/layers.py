"""Reading layers.jsonl. Imports the standard library only, for tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LAYERS = 'layers.jsonl'

log = logging.getLogger(__name__)


def layer_lines(
    path: Path, report: Callable[[str], None] = log.warning
) -> Iterator[dict[str, Any]]:
    """The lines of layers.jsonl: 'step' and, by layer, 'layers'; none where there is no file.

    A line that is cut, as by a kill, or damaged is skipped.

    Args:
        path: The file.
        report: Is called with a line of text about each line that is skipped.
    """
    lines = path.read_text(errors='replace').split('\n') if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line and number == len(lines):  # behind the last line feed
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if (
            isinstance(content, dict)
            and type(content.get('step')) is int
            and isinstance(content.get('layers'), dict)
        ):
            yield content
        else:
            report(f'{path}: line {number} is damaged ({line!r:.20}), and is skipped')
