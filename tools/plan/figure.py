"""Predicted time of a step against the number of workers, one panel per bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.harness.figures import finish, panels
from tools.plan.report import Prediction


def draw(predictions: Sequence[Prediction], latency: float, file: Path) -> None:
    """Write a PNG with one curve per composition. latency: in ms."""
    bandwidths = list(dict.fromkeys(each.bandwidth for each in predictions))
    figure, axes = panels(len(bandwidths))
    names = list(dict.fromkeys(each.composition for each in predictions))
    for panel, bandwidth in zip(axes, bandwidths, strict=True):
        for number, name in enumerate(names):
            points = [
                (each.workers, each.ms)
                for each in predictions
                if (each.bandwidth, each.composition) == (bandwidth, name)
            ]
            if points:
                xs, ys = zip(*points, strict=True)
                panel.loglog(xs, ys, color=f'C{number}', marker='.', label=name)
        panel.set_title(bandwidth)
    finish(axes, sorted({each.workers for each in predictions}), 'predicted ms per step')
    figure.suptitle(f'predicted, latency {latency:g} ms')
    figure.savefig(file, format='png', dpi=130)
