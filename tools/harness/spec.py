"""Specifications of workers as JSON: they read ``spec.json`` and write ``answer.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

SPEC, ANSWER = 'spec.json', 'answer.json'

Start = Callable[[Path], int]  # runs the workers of a folder with a spec.json: their exit status


class Outcome(NamedTuple):
    """What a set of workers returned.

    status: their exit status.
    answer: content of the answer file; empty if no worker wrote one.
    """

    status: int
    answer: dict[str, Any]


def run_with_spec(spec: Mapping[str, Any], start: Start) -> Outcome:
    """Run a set of workers on a specification, in a temporary folder.

    Args:
        spec: what the workers need to know. The path of the file to answer in is added as 'answer';
            its folder is the workers' gate (``tools.harness.gate``), if they have one.
        start: starts the workers and waits for them.

    Returns:
        Their exit status and their answer.
    """
    with TemporaryDirectory(prefix='dgc') as name:
        folder = Path(name)
        answer = folder / ANSWER
        write_json(folder / SPEC, {**spec, 'answer': str(answer)})
        status = start(folder)
        return Outcome(status, json.loads(answer.read_text()) if answer.exists() else {})


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically: readers see the old file or all of the new one."""
    scratch = path.with_name(f'{path.name}.new')
    scratch.write_text(json.dumps(content, indent=1) + '\n')
    scratch.replace(path)
