"""Predicted steps against the number of workers, a panel a bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.scaling import make_room, name_lines
from tools.plan.report import Prediction


def draw(predictions: Sequence[Prediction], latency: float, file: Path) -> None:
    """Write a PNG: a line a composition, with its name beside it. latency: in ms."""
    bandwidths = list(dict.fromkeys(each.bandwidth for each in predictions))
    figure = Figure(figsize=(6 * len(bandwidths), 6), layout='constrained')
    panels = figure.subplots(1, len(bandwidths), sharex=True, sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(each.composition for each in predictions))
    for axes, bandwidth in zip(panels, bandwidths, strict=True):
        for number, name in enumerate(names):
            points = [
                (each.workers, each.ms)
                for each in predictions
                if (each.bandwidth, each.composition) == (bandwidth, name)
            ]
            if points:
                xs, ys = zip(*points, strict=True)
                axes.loglog(xs, ys, color=f'C{number}', marker='.', label=name)
        axes.grid(alpha=0.3)
        axes.set_xlabel('workers')
        axes.set_title(bandwidth)
    panels[0].set_ylabel('predicted ms a step')
    make_room(panels[0], sorted({each.workers for each in predictions}))
    for axes in panels:
        name_lines(axes)
    figure.suptitle(f'predicted, latency {latency:g} ms')
    figure.savefig(file, format='png', dpi=130)
