"""The curves, the phases and the scaling of runs as PNG, for papers. Needs matplotlib, the extra
[plot]."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.report.summary import label

# Okabe and Ito's colours, which people with any colour vision tell apart; the dense run is black.
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#666666')
DASHES = ('-', '--', ':', '-.')
MOST = 8  # curves in colour; others are grey
MOST_PANELS = 4  # of a figure with one for each run
PHASES = {'compute': '#8aa0bf', 'wait': '#e69f00'}  # of the training loop

Run = dict[str, Any]  # as ``page_data`` has it


def write_figures(data: dict[str, Any], folder: Path) -> list[Path]:
    """Write the figures of the task that most runs train; returns their paths.

    Raises:
        ValueError: Where no run has measured anything.
    """
    tasks = [run['task'] for run in data['runs'] if run['columns']]
    if not tasks:
        raise ValueError('no run has measured an epoch: there is nothing to draw')
    task = max(dict.fromkeys(tasks), key=tasks.count)
    runs = [run for run in data['runs'] if run['task'] == task and run['columns']]
    runs.sort(key=lambda run: (not run['is_dense'], rank_of(run['summary'])))
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {
        'quality.png': quality(runs, task),
        'phases.png': phases(runs, task),
        'compression.png': compression(runs, task),
        'scaling.png': scaling(runs, task),
        'selection.png': selection(runs, task),
    }
    written = []
    for name, figure in drawn.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=160)
            written.append(folder / name)
    return written


def rank_of(numbers: dict[str, Any]) -> float:
    """A number that is lower for a better run, from its summary."""
    best = float(numbers['best'] or 0)
    return best if numbers['better'] == 'lower' else -best


def style(runs: Sequence[Run], number: int) -> dict[str, Any]:
    """The colour and the dashes of the run of that number; runs beyond MOST are grey."""
    if number >= MOST:
        return {'color': '#bbbbbb', 'linewidth': 0.7, 'zorder': 1}
    label = runs[number]['label']
    if runs[number]['is_dense']:
        return {'color': 'black', 'linestyle': '-', 'label': label}
    look = {'color': COLOURS[number % len(COLOURS)], 'linestyle': DASHES[number % len(DASHES)]}
    return {**look, 'label': label}


def curves(axes: Axes, runs: Sequence[Run], x: str, y: str) -> None:
    """Draw y against x; epochs are counted from 1. Seconds of simulated workers mean little."""
    for number, run in enumerate(runs):
        columns = run['columns']
        pairs = zip(columns.get(x, []), columns.get(y, []), strict=False)
        known = [(a + (x == 'epoch'), b) for a, b in pairs if a is not None and b is not None]
        if known and not (x == 'total/seconds' and run['is_simulated']):
            axes.plot(*zip(*known, strict=True), **style(runs, number))
    axes.grid(alpha=0.25)


def quality(runs: Sequence[Run], task: str) -> Figure:
    """The metric against epochs, seconds and bytes."""
    metric = next((run['summary']['metric'] for run in runs if run['summary']['metric']), '')
    figure = Figure(figsize=(12, 4), layout='constrained')
    panels = figure.subplots(1, 3, sharey=True)
    axes_of = {
        'epoch': 'epochs',
        'total/seconds': 'seconds of training',
        'total/bytes': 'bytes sent per worker',
    }
    for axes, (x, name) in zip(panels, axes_of.items(), strict=True):
        curves(axes, runs, x, metric)
        axes.set_xlabel(name)
    if any(sum(run['columns'].get('total/bytes', [0])) > 0 for run in runs):
        panels[-1].set_xscale('log')
    panels[0].set_ylabel(metric)
    legend(figure, panels[0], task)
    return figure


def compression(runs: Sequence[Run], task: str) -> Figure:
    """Density, bytes per step, the norm of the residual and the loss, by epoch."""
    figure = Figure(figsize=(12, 6), layout='constrained')
    panels = figure.subplots(2, 2).flat
    names = {
        'ratio': 'density',
        'step/bytes': 'bytes per step and worker',
        'norm/residual': 'L2 norm of the residual, rank 0',
        'loss/train': 'training loss',
    }
    for axes, (column, name) in zip(panels, names.items(), strict=True):
        curves(axes, runs, 'epoch', column)
        axes.set_xlabel('epochs')
        axes.set_ylabel(name)
        if column != 'norm/residual' and axes.lines:
            axes.set_yscale('log')
    legend(figure, figure.axes[0], task)
    return figure


def phases(runs: Sequence[Run], task: str) -> Figure:
    """What the training loop does in a step: it computes, then waits for gradients."""
    real = [run for run in runs if not run['is_simulated']]
    timed = [run for run in real if run['columns'].get('step/compute')][:MOST]
    figure = Figure(figsize=(9, 1.3 + 0.42 * max(len(timed), 1)), layout='constrained')
    axes = figure.subplots()
    left = [0.0] * len(timed)
    for phase, colour in PHASES.items():
        widths = [1e3 * average(run['columns'].get(f'step/{phase}', [])) for run in timed]
        hatch = '///' if phase == 'wait' else None
        rows = range(len(timed))
        axes.barh(
            rows, widths, left=left, color=colour, label=phase, hatch=hatch, edgecolor='white'
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(timed)), [run['label'] for run in timed])
    axes.invert_yaxis()
    axes.set_xlabel('ms per step, rank 0')
    legend(figure, axes, task)
    return figure


def scaling(runs: Sequence[Run], task: str) -> Figure | None:
    """Speed-up and bytes against the number of workers, a curve for each stack of config files.

    None where no stack was run with several numbers of workers. The speed-up is the samples per
    second of all workers, over those of one worker: of the fastest run with the fewest workers, a
    worker's part. Seconds of simulated workers mean little, so these have bytes alone.
    """
    stacks: dict[str, dict[int, Run]] = defaultdict(dict)
    for run in runs:  # the better ones first
        if not run['is_server'] and run['summary']['workers']:
            stacks[label(run['name'])].setdefault(run['summary']['workers'], run)
    stacks = {name: each for name, each in stacks.items() if len(each) > 1}
    if not stacks:
        return None
    figure = Figure(figsize=(9, 4), layout='constrained')
    speeds, traffic = figure.subplots(1, 2)
    timed = {
        (name, workers): average(run['columns'].get('speed/samples', []))
        for name, each in stacks.items()
        for workers, run in each.items()
        if not run['is_simulated']
    }
    timed = {key: speed for key, speed in timed.items() if speed}
    fewest = min((workers for _, workers in timed), default=1)
    one = max((v / fewest for (_, workers), v in timed.items() if workers == fewest), default=1.0)
    shown = [{**next(iter(each.values())), 'label': name} for name, each in stacks.items()]
    for number, (name, each) in enumerate(stacks.items()):
        look = style(shown, number)
        counts = sorted(each)
        points = [(n, timed[name, n] / one) for n in counts if (name, n) in timed]
        if points:
            speeds.plot(*zip(*points, strict=True), marker='o', **look)
        sent = [average(each[n]['columns'].get('step/bytes', [])) for n in counts]
        traffic.plot(counts, sent, marker='o', **look)
    most = max((workers for _, workers in timed), default=1)
    speeds.plot([fewest, most], [fewest, most], color='#bbbbbb', linewidth=1, label='linear')
    speeds.set_ylabel(f'speed-up over one worker{"" if fewest == 1 else f", of {fewest}"}')
    traffic.set_ylabel('bytes per step and worker')
    if any(line.get_ydata().max() > 0 for line in traffic.lines):
        traffic.set_yscale('log')
    for axes in (speeds, traffic):
        axes.set_xlabel('workers')
        axes.grid(alpha=0.25)
    legend(figure, speeds if timed else traffic, task)
    return figure


def selection(runs: Sequence[Run], task: str) -> Figure | None:
    """What top-k loses over what random-k loses, by layer over steps; a panel for each run.

    None where no run has measured it (configs.log.selection_steps).
    """
    measured = [run for run in runs if run['selection']['steps']][:MOST_PANELS]
    if not measured:
        return None
    figure = Figure(figsize=(4.5 * len(measured), 4.5), layout='constrained')
    panels = figure.subplots(1, len(measured), sharey=True, squeeze=False)[0]
    for axes, run in zip(panels, measured, strict=True):
        for number, (layer, errors) in enumerate(run['selection']['layers'].items()):
            known = [
                each
                for each in zip(run['selection']['steps'], errors, strict=True)
                if each[1] is not None
            ]
            colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
            axes.plot(*zip(*known, strict=True), color=colour, linestyle=dash, label=layer)
        axes.axhline(1.0, color='#666666', linewidth=1, linestyle='--')
        axes.set_title(run['label'], fontsize=10)
        axes.set_xlabel('steps')
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7)
    panels[0].set_ylabel('‖x − topk(x)‖² / E‖x − randk(x)‖², rank 0')
    figure.suptitle(task, fontsize=11)
    return figure


def average(column: Sequence[float | None]) -> float:
    """The mean; 0.0 where nothing was measured."""
    values = [value for value in column if value is not None]
    return sum(values) / len(values) if values else 0.0


def legend(figure: Figure, axes: Axes, title: str) -> None:
    """Write a title, and the names of curves below the figure."""
    figure.suptitle(title, fontsize=11)
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc='outside lower center', ncols=4, frameon=False)
