"""Predictions for people, and as rows of a JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.report import number
from dgc.costmodel import Calibration
from tools.plan.compositions import DENSE
from tools.plan.predict import Step
from tools.plan.subject import Subject


class Prediction(NamedTuple):
    """One composition in one cell. efficiency: the share of ``ms`` that a worker alone takes."""

    bandwidth: str
    workers: int
    composition: str
    ms: float
    efficiency: float


def host(calibration: Calibration, sharing: float) -> str:
    """What this host was measured to do."""
    network, processor = calibration.network, calibration.processor
    text = (
        f'this host: {1e6 * network.alpha:.0f} µs a message, {1e9 * network.beta:.2f} ns a byte, '
        f'of them {1e6 * processor.alpha:.0f} µs and {1e9 * processor.beta:.2f} ns of processor; '
        f'off by {calibration.error:.0%} (root mean square)'
    )
    return text + (f'; {sharing:g} workers share a core' if sharing > 1 else '')


def plan(
    subject: Subject,
    step: Step,
    predictions: Sequence[Prediction],
    notes: Sequence[str],
    latency: float,
) -> str:
    """Everything: what was measured, a table a bandwidth, and where dense wins."""
    numbers = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
    lines = [
        f'{numbers:,} parameters; forward and backward pass {number(1e3 * step.backward)} ms',
        *(f'note: {note}' for note in notes),
        f'\nms a step (scaling efficiency), latency {latency:g} ms',
    ]
    for bandwidth in dict.fromkeys(each.bandwidth for each in predictions):
        lines += ['', *table([each for each in predictions if each.bandwidth == bandwidth])]
    return '\n'.join([*lines, '', *closing(predictions)])


def table(predictions: Sequence[Prediction]) -> list[str]:
    """The lines of one bandwidth: one a composition, and who wins."""
    workers = list(dict.fromkeys(each.workers for each in predictions))
    names = list(dict.fromkeys(each.composition for each in predictions))
    found = {(each.composition, each.workers): each for each in predictions}
    best = [first(predictions, count) for count in workers]
    rows = [[predictions[0].bandwidth, *(f'{count:,} workers' for count in workers)]]
    rows += [[name, *(cell(found.get((name, count))) for count in workers)] for name in names]
    rows.append(['wins', *(each.composition for each in best)])
    rows.append(['rival takes', *(rival(predictions, each) for each in best)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        '  '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def cell(each: Prediction | None) -> str:
    """One prediction; a dash where the exchange does not serve so many workers."""
    return '-' if each is None else f'{number(each.ms)} ({each.efficiency:.0%})'


def rival(predictions: Sequence[Prediction], best: Prediction) -> str:
    """How many times as long as the best dense takes, or the best of the others beside it."""
    cells = [each for each in predictions if each.workers == best.workers]
    others = [each for each in cells if (each.composition == DENSE) != (best.composition == DENSE)]
    if not others:
        return '-'
    other = min(others, key=lambda each: each.ms)
    return f'{other.composition} ×{number(other.ms / best.ms, 2)}'


def first(predictions: Sequence[Prediction], workers: int) -> Prediction:
    """The fastest among so many workers; dense, where others are no faster."""
    cells = [each for each in predictions if each.workers == workers]
    return min(cells, key=lambda each: (each.ms, each.composition != DENSE))


def closing(predictions: Sequence[Prediction]) -> list[str]:
    """Where dense wins: a line a bandwidth."""
    lines, lost = [], False
    for bandwidth in dict.fromkeys(each.bandwidth for each in predictions):
        cells = [each for each in predictions if each.bandwidth == bandwidth]
        workers = list(dict.fromkeys(each.workers for each in cells))
        won = [count for count in workers if first(cells, count).composition == DENSE]
        lost = lost or won != workers
        if won:
            among = ', '.join(f'{count:,}' for count in won)
            lines.append(
                f'dense wins at {bandwidth} with {among} workers: compression is not worth it there'
            )
    if not lost:
        return ['dense wins everywhere: compression is not worth it on these networks']
    return lines or ['dense wins nowhere']


def rows(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Of the JSON file."""
    winners = {
        (each.bandwidth, each.workers): first(
            [other for other in predictions if other.bandwidth == each.bandwidth], each.workers
        ).composition
        for each in predictions
    }
    return [
        {**each._asdict(), 'wins': winners[each.bandwidth, each.workers] == each.composition}
        for each in predictions
    ]
