"""layers.jsonl of a run, as the curves of its largest layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from utils.layers import layer_lines

MOST_LAYERS = 8
MOST_STEPS = 200  # of which errors are drawn; of longer runs, some are left out


def read_selection(path: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Return what top-k lost over what random-k loses, of the largest layers.

    Args:
        path: The file.
        report: Is called with a line of text about damaged lines.

    Returns:
        steps: The numbers of the steps that were measured, ascending.
        layers: Layer → the error in each of them; None where it was not measured.
    """
    found = {line['step']: line['layers'] for line in layer_lines(path, report)}
    steps = sorted(found)
    steps = steps[:: math.ceil(len(steps) / MOST_STEPS) or 1]
    sizes = {
        name: numbers['elements']
        for layers in found.values()
        for name, numbers in layers.items()
        if is_whole(numbers)
    }
    largest = sorted(sizes, key=lambda name: -sizes[name])[:MOST_LAYERS]
    curves = {name: [error_in(found[step].get(name)) for step in steps] for name in largest}
    return {'steps': steps, 'layers': curves}


def error_in(numbers: Any) -> float | None:
    """The error of top-k among a layer's numbers; None where they are not whole."""
    return float(numbers['topk']) if is_whole(numbers) else None


def is_whole(numbers: object) -> bool:
    """Whether a layer's numbers are those that are drawn."""
    return isinstance(numbers, dict) and all(
        isinstance(numbers.get(name), int | float) for name in ('elements', 'topk')
    )
