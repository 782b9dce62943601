"""The timeline of a step (backward, compress, communicate), for each division into buckets."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.plan.division import Division

WIDTH = 84  # columns
MARKS = string.digits[1:] + string.ascii_lowercase + string.ascii_uppercase


def text(divisions: Sequence[Division]) -> str:
    """The timelines for a terminal, on one scale, with a mark for each bucket."""
    longest = max(each.end for each in divisions)
    lines = [
        'timeline of a step: - forward, = backward (with the work on buckets), a mark for each '
        f'bucket; {1e3 * longest / WIDTH:.1f} ms per column'
    ]
    for each in divisions:
        lines += ['', *block(each, WIDTH / longest)]
    return '\n'.join(lines)


def block(division: Division, columns: float) -> list[str]:
    """The lines of one division. columns: per second."""
    spans = division.spans
    passes = paint([(0.0, division.forward, '-'), (division.forward, division.core, '=')], columns)
    marked = [(span, MARKS[number % len(MARKS)]) for number, span in enumerate(spans)]
    compress = paint([(span.begin, span.made, mark) for span, mark in marked], columns)
    communicate = paint([(span.sent, span.end, mark) for span, mark in marked], columns)
    return [
        f'{division.name}: {len(spans)} buckets, {1e3 * division.end:.1f} ms per step',
        f'  backward     {passes}',
        f'  compress     {compress}',
        f'  communicate  {communicate}',
    ]


def paint(bars: Iterable[tuple[float, float, str]], columns: float) -> str:
    """Draw bars (begin, end, mark), in seconds, on one line; each has at least one column."""
    line = [' '] * (WIDTH + 1)
    for begin, end, mark in bars:
        first = min(int(begin * columns), WIDTH)
        last = max(min(round(end * columns), WIDTH + 1), first + 1)
        line[first:last] = mark * (last - first)
    return ''.join(line).rstrip()


def draw(divisions: Sequence[Division], title: str, file: Path) -> None:
    """Write a PNG with one panel per division, all on one scale."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(11, 1.9 * len(divisions) + 0.6), layout='constrained')
    panels = figure.subplots(len(divisions), 1, sharex=True, squeeze=False)[:, 0]
    for axes, each in zip(panels, divisions, strict=True):
        forward, core = 1e3 * each.forward, 1e3 * each.core
        axes.broken_barh([(0, forward)], (2.1, 0.8), color='0.85')
        axes.broken_barh([(forward, core - forward)], (2.1, 0.8), color='0.6')
        for number, span in enumerate(each.spans):
            begin, made, sent, end = (1e3 * seconds for seconds in span)
            color = f'C{number % 10}'
            axes.broken_barh([(begin, made - begin)], (1.1, 0.8), color=color)
            axes.broken_barh([(sent, end - sent)], (0.1, 0.8), color=color)
        axes.axvline(1e3 * each.end, color='0.3', linewidth=0.8)
        axes.set_yticks([2.5, 1.5, 0.5], ['forward, backward', 'compress', 'communicate'])
        axes.set_title(f'{each.name}: {len(each.bucket_times)} buckets, {1e3 * each.end:.1f} ms')
    panels[-1].set_xlabel('ms after the start of the step')
    figure.suptitle(title)
    figure.savefig(file, format='png', dpi=130)
