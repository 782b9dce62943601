"""Figures of time against the number of workers: log-log curves, each with its name beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LINE = 0.045  # height of a line of text, as a fraction of a panel's height
NAMES = 0.68  # where names begin, as a fraction of a panel's width


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels side by side, with common axes."""
    figure = Figure(figsize=(6 * count, 6), layout='constrained')
    return figure, list(figure.subplots(1, count, sharex=True, sharey=True, squeeze=False)[0])


def finish(axes: Sequence[Axes], workers: Sequence[int], ylabel: str) -> None:
    """Label the axes of all panels, and write the name of each curve beside its end.

    Args:
        axes: panels that have their curves, labelled with their names.
        workers: numbers of workers to mark on the x axis, ascending.
        ylabel: label of the y axis.
    """
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.set_xlabel('workers')
    axes[0].set_ylabel(ylabel)
    make_room(axes[0], workers)
    for panel in axes:
        name_lines(panel)


def make_room(axes: Axes, workers: Sequence[int]) -> None:
    """Extend the x axis so that names fit on the right of the curves."""
    first, last = workers[0], max(workers[-1], 2 * workers[0])
    axes.set_xlim(first / 1.2, first * (last / first) ** (1 / (NAMES - 0.05)))
    axes.set_xticks(workers, [f'{number:,}' for number in workers])
    axes.set_xticks([], minor=True)


def name_lines(axes: Axes) -> None:
    """Write each curve's name as near to the end of the curve as the other names allow."""
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
    """Move heights apart so that neighbours differ by at least LINE and none exceeds 1.

    Returns:
        The new heights in ascending order, each with its index in ``heights``.
    """
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    places: list[float] = []
    for index in order:
        places.append(max(heights[index], places[-1] + LINE if places else 0.0))
    top = 1.0
    for number in reversed(range(len(places))):  # push down what was moved above the panel
        places[number] = min(places[number], top)
        top = places[number] - LINE
    return list(zip(places, order, strict=True))
