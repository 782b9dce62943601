"""Scaling curves of the exchanges: time against the number of workers, a panel a rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = ('-', '--', ':')  # of one kind, in turn
LINE = 0.045  # of text, as a share of a panel's height
NAMES = 0.68  # where they begin, as a share of a panel's width


def draw(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Write a PNG of simulated rows: a line an exchange, with its name beside it."""
    rates = list(dict.fromkeys(row['rate'] for row in results))
    figure = Figure(figsize=(6 * len(rates), 6), layout='constrained')
    panels = figure.subplots(1, len(rates), sharex=True, sharey=True, squeeze=False)[0]
    for axes, rate in zip(panels, rates, strict=True):
        plot(axes, [row for row in results if row['rate'] == rate])
        axes.set_title(f'{rate}, {results[0]["latency_us"]:g} µs')
    panels[0].set_ylabel('ms an exchange')
    make_room(panels[0], sorted({row['workers'] for row in results}))
    for axes in panels:
        name_lines(axes)
    figure.suptitle(f'{results[0]["numel"]:,} elements, {results[0]["k"]:,} of them sent')
    figure.savefig(file, format='png', dpi=130)


def plot(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """The lines of one rate. Exchanges whose names begin with the same word have one colour."""
    kinds: list[str] = []
    for name in dict.fromkeys(row['exchange'] for row in rows):
        kind = name.split()[0]
        style = STYLES[kinds.count(kind) % len(STYLES)]
        kinds.append(kind)
        colour = f'C{list(dict.fromkeys(kinds)).index(kind)}'
        points = [(row['workers'], row['virtual_ms']) for row in rows if row['exchange'] == name]
        axes.loglog(*zip(*points, strict=True), style, color=colour, marker='.', label=name)
    axes.grid(alpha=0.3)
    axes.set_xlabel('workers')


def make_room(axes: Axes, workers: Sequence[int]) -> None:
    """For names, right of the lines."""
    first, last = workers[0], max(workers[-1], 2 * workers[0])
    axes.set_xlim(first / 1.2, first * (last / first) ** (1 / (NAMES - 0.05)))
    axes.set_xticks(workers, [f'{number:,}' for number in workers])
    axes.set_xticks([], minor=True)


def name_lines(axes: Axes) -> None:
    """Each on a line of text of its own, as near the end of its curve as the others let it."""
    lowest, highest = axes.get_ylim()
    lines = axes.get_lines()
    ends = [tuple(np.asarray(line.get_xydata())[-1]) for line in lines]
    heights = [math.log(y / lowest) / math.log(highest / lowest) for _, y in ends]
    for height, index in spread(heights):
        colour = lines[index].get_color()
        axes.annotate(
            str(lines[index].get_label()),
            xy=ends[index],
            xytext=(NAMES, height),
            textcoords='axes fraction',
            verticalalignment='center',
            color=colour,
            arrowprops={'arrowstyle': '-', 'color': colour, 'alpha': 0.4},
        )


def spread(heights: Sequence[float]) -> list[tuple[float, int]]:
    """The heights at least a line apart, in ascending order, each with its place in the list."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    places: list[float] = []
    for index in order:
        places.append(max(heights[index], places[-1] + LINE if places else 0.0))
    top = 1.0
    for number in reversed(range(len(places))):
        places[number] = min(places[number], top)
        top = places[number] - LINE
    return list(zip(places, order, strict=True))
