"""Scaling curves of simulated exchanges: time against the number of workers, one panel per rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from tools.harness.figures import finish, panels

STYLES = ('-', '--', ':')  # of exchanges of one kind, in turn


def draw(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Write a PNG of simulated rows, with one curve per exchange."""
    rates = list(dict.fromkeys(row['rate'] for row in results))
    figure, axes = panels(len(rates))
    for panel, rate in zip(axes, rates, strict=True):
        plot(panel, [row for row in results if row['rate'] == rate])
        panel.set_title(f'{rate}, {results[0]["latency_us"]:g} µs')
    finish(axes, sorted({row['workers'] for row in results}), 'ms per exchange')
    figure.suptitle(f'{results[0]["numel"]:,} elements, {results[0]["k"]:,} of them sent')
    figure.savefig(file, format='png', dpi=130)


def plot(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Draw the curves of one rate; exchanges whose names share the first word share a colour."""
    kinds: list[str] = []
    for name in dict.fromkeys(row['exchange'] for row in rows):
        kind = name.split()[0]
        style = STYLES[kinds.count(kind) % len(STYLES)]
        kinds.append(kind)
        colour = f'C{list(dict.fromkeys(kinds)).index(kind)}'
        points = [(row['workers'], row['virtual_ms']) for row in rows if row['exchange'] == name]
        axes.loglog(*zip(*points, strict=True), style, color=colour, marker='.', label=name)
