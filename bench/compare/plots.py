"""The figures: quality against bytes, and against seconds on a link."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from bench.compare.report import Group
from bench.parity.workloads import Metric
from tools.harness.algorithms import DENSE

MARKERS = 'osv^D<>PX*'
COLOURS = 'tab10'


def draw(
    groups: Sequence[Group], metric: Metric, target: float | None, axis: str, label: str, file: Path
) -> None:
    """Write one figure as SVG. The same data give the same bytes.

    Args:
        groups: The rows that have results.
        metric: What is compared.
        target: A quality to mark; None for none.
        axis: 'megabytes' or 'seconds' of curves.
        label: Of that axis.
        file: To write.
    """
    # The salt names what is drawn; else matplotlib draws it at random.
    with matplotlib.rc_context({'svg.hashsalt': 'dgc', 'font.size': 10}):
        figure = Figure(figsize=(9, 5), layout='constrained')
        axes = figure.subplots()
        colours = matplotlib.colormaps[COLOURS].colors  # type: ignore[attr-defined]
        drawn = [group for group in groups if group.curves]
        for number, group in enumerate(drawn):
            style = {'color': colours[number % len(colours)]}
            if group.name == DENSE:
                style = {'color': 'black', 'linewidth': '2.5'}
            marker = MARKERS[(number + number // len(colours)) % len(MARKERS)]
            axes.plot(*mean_curve(group, axis), marker=marker, label=group.name, **style)
        if target is not None:
            axes.axhline(target, color='grey', linestyle=':')
        axes.set_xscale('log')
        axes.set_ylim(*visible([statistics.mean(g.values.values()) for g in drawn], metric))
        axes.set_xlabel(label)
        axes.set_ylabel(metric.name)
        axes.grid(alpha=0.3)
        figure.legend(loc='outside right upper', fontsize=8)
        figure.savefig(file, format='svg', metadata={'Date': None})


def mean_curve(group: Group, axis: str) -> tuple[list[float], list[float]]:
    """Return both coordinates after each epoch, mean over the seeds; without epochs at 0."""
    xs = [statistics.mean(e) for e in zip(*(getattr(c, axis) for c in group.curves), strict=True)]
    ys = [statistics.mean(e) for e in zip(*(c.values for c in group.curves), strict=True)]
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if x > 0]
    return [x for x, _ in kept], [y for _, y in kept]


def visible(ends: Sequence[float], metric: Metric) -> tuple[float, float]:
    """Return the limits within which all rows end, with as much again on the worse side."""
    low, high = min(ends), max(ends)
    span = max(high - low, 0.15 * abs(high))
    return (low - span, high + span / 10) if metric.higher else (low - span / 10, high + span)
