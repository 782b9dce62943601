"""layers.jsonl: written by a run, read by tools. Imports the standard library only."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from utils.files import append_line, replacing, saving
from utils.lines import parsed_lines

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
    for number, line, content in parsed_lines(path):
        if (
            content is not None
            and type(content.get('step')) is int
            and isinstance(content.get('layers'), dict)
        ):
            yield content
        else:
            report(f'{path}: line {number} is damaged ({line!r:.20}), and is skipped')


class LayerFile:
    """layers.jsonl: a line of each step in which selections were measured.

    Lines of later steps, from before a run went back to a checkpoint, are removed.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LAYERS
        self._last: int | None = None  # step; None before the first line of this process

    def append(self, layers: Mapping[str, Mapping[str, Any]], step: int) -> None:
        """Write the numbers of each layer in step ``step``, counted from 0."""
        if self._last is None or step <= self._last:
            self._remove_from(step)
        with saving(self._path):
            append_line(self._path, json.dumps({'step': step, 'layers': dict(layers)}))
        self._last = step

    def _remove_from(self, step: int) -> None:
        """Remove the lines of steps from ``step`` on."""
        if self._path.is_file():
            kept = [line for line in layer_lines(self._path) if line['step'] < step]
            with replacing(self._path) as file:
                file.write(''.join(f'{json.dumps(line)}\n' for line in kept).encode())
