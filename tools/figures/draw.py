"""The figures of the documents that need no more than stored numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.harness.figures import finish, panels

DATA = Path(__file__).parents[2] / 'docs/data'
# Okabe and Ito's colours, which people with any colour vision tell apart.
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, GREY = (
    *('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#666666'),
)

Data = dict[str, Any]


def stored(name: str) -> Data:
    """The content of docs/data/NAME.json."""
    content: Data = json.loads((DATA / f'{name}.json').read_text())
    return content


def draw(name: str, file: Path) -> None:
    """Write one of FIGURES as SVG. The same data give the same bytes."""
    # The salt names what is drawn; else matplotlib draws it at random.
    with matplotlib.rc_context({'svg.hashsalt': 'dgc', 'font.size': 10}):
        FIGURES[name](stored(name)).savefig(file, format='svg', metadata={'Date': None})


# Row of the step times → colour, marker; other rows are left out, as they lie on these.
STEP_ROWS = {
    'DDP, fp32': ('black', 's'),
    'dense': (GREY, 'x'),
    'dgc': (ORANGE, '^'),
    'dgc, packed, int8': (BLUE, 'o'),
    'gtopk': (GREEN, 'v'),
}


def step_times(data: Data) -> Figure:
    """Time of a step against the bandwidth of the links."""
    figure = Figure(figsize=(7, 4), layout='constrained')
    axes = figure.subplots()
    rates = sorted(data['rates'].items(), key=lambda rate: rate[1])
    rows = {row['name']: row['ms'] for row in data['rows']}
    bits = [rate for _, rate in rates]
    for name, (colour, marker) in STEP_ROWS.items():
        times = [rows[name][rate] for rate, _ in rates]
        axes.loglog(bits, times, color=colour, marker=marker, label=name)
    compute = sum(rows['compute alone'][rate] for rate, _ in rates) / len(rates)
    axes.axhline(compute, color=GREY, linestyle=':', label='compute alone')
    axes.set_xticks(bits, ['10 Mbit/s', '100 Mbit/s', '1 Gbit/s'])
    axes.set_xticks([], minor=True)
    axes.set_yticks([500, 1000, 10_000, 80_000], ['0.5 s', '1 s', '10 s', '80 s'])
    axes.set_ylabel('time of a step')
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(data['title'], fontsize=10)
    return figure


def bytes_sent(data: Data) -> Figure:
    """Bytes that a worker sends in the whole run, by method, with the accuracy beside them."""
    rows = sorted(data['rows'], key=lambda row: -row['megabytes'])
    figure = Figure(figsize=(7, 1 + 0.22 * len(rows)), layout='constrained')
    axes = figure.subplots()
    sizes = [row['megabytes'] for row in rows]
    colours = [GREY if row['name'] == 'dense' else BLUE for row in rows]
    axes.barh(range(len(rows)), sizes, color=colours)
    for number, row in enumerate(rows):
        text = f' {row["megabytes"]:.4g} MB, {row["accuracy"]:.1f} %'
        axes.text(row['megabytes'], number, text, va='center', fontsize=9)
    axes.set_yticks(range(len(rows)), [row['name'] for row in rows])
    axes.set_xscale('log')
    axes.set_xlim(min(sizes) / 2, 20 * max(sizes))  # the texts need room
    axes.set_xlabel('MB that a worker sends; test accuracy')
    axes.set_title(data['title'], fontsize=10)
    return figure


def scaling(data: Data) -> Figure:
    """Time of an exchange against the number of workers."""
    figure, (axes,) = panels(1)
    figure.set_size_inches(8, 5)
    colours = ('black', ORANGE, GREEN, GREEN, BLUE, BLUE, BLUE, PINK, YELLOW, SKY)
    styles = ('-', '-', '-', '--', '-', '--', ':', '-', '-', '-')
    for row, colour, style in zip(data['rows'], colours, styles, strict=True):
        workers = data['workers']
        axes.loglog(workers, row['ms'], style, color=colour, marker='.', label=row['name'])
    finish([axes], data['workers'], 'ms per exchange')
    axes.set_title(data['title'], fontsize=10)
    return figure


def timeline(data: Data) -> Figure:
    """When each bucket of a step is compressed and sent, for several divisions into buckets."""
    divisions = data['divisions']
    figure = Figure(figsize=(9, 1.7 * len(divisions) + 0.5), layout='constrained')
    rows = figure.subplots(len(divisions), 1, sharex=True, squeeze=False)[:, 0]
    column = max(each['ms'] for each in divisions) / data['columns']
    for axes, each in zip(rows, divisions, strict=True):
        for height, name in ((2, 'backward'), (1, 'compress'), (0, 'communicate')):
            bars(axes, each[name], height, column)
        axes.axvline(each['ms'], color=GREY, linewidth=0.8)
        names = ['forward, backward', 'compress', 'communicate']
        axes.set_yticks([2.4, 1.4, 0.4], names)
        axes.set_title(f'{each["name"]}: {each["buckets"]} buckets, {each["ms"]} ms', fontsize=10)
    rows[-1].set_xlabel('ms after the start of the step')
    return figure


def bars(axes: Axes, line: str, height: float, column: float) -> None:
    """Draw a line of a timeline in text: a bar for each run of equal marks."""
    colours = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY)
    begin = 0
    for end in range(1, len(line) + 1):
        if end == len(line) or line[end] != line[begin]:
            mark = line[begin]
            fixed = {'-': '0.85', '=': '0.6'}
            if mark != ' ':
                colour = fixed.get(mark) or colours[int(mark, 36) % len(colours)]
                axes.broken_barh(
                    [(begin * column, (end - begin) * column)], (height, 0.8), color=colour
                )
            begin = end


FIGURES: dict[str, Callable[[Data], Figure]] = {
    'step_times': step_times,
    'bytes': bytes_sent,
    'scaling': scaling,
    'timeline': timeline,
}
