"""Predictions as tables for people, and as rows of a JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dgc.costmodel import Calibration
from dgc.profile import Profile
from tools.harness.algorithms import DENSE
from tools.harness.tables import align, number
from tools.plan.subject import Subject


class Prediction(NamedTuple):
    """One composition with a number of workers at a bandwidth.

    ms: per step. efficiency: the step of one worker alone, as a fraction of ``ms``.
    """

    bandwidth: str
    workers: int
    composition: str
    ms: float
    efficiency: float


def host(calibration: Calibration, sharing: float) -> str:
    """A line with the calibration of this host. sharing: workers that share a core."""
    network, processor = calibration.network, calibration.processor
    text = (
        f'this host: {1e6 * network.alpha:.0f} µs per message, {1e9 * network.beta:.2f} ns per '
        f'byte, of which {1e6 * processor.alpha:.0f} µs and {1e9 * processor.beta:.2f} ns are '
        f'processor time; error {calibration.error:.0%} (root mean square)'
    )
    return text + (f'; {sharing:g} workers share a core' if sharing > 1 else '')


def plan(
    subject: Subject,
    step: Profile,
    predictions: Sequence[Prediction],
    notes: Sequence[str],
    latency: float,
    error: float = 0.0,
) -> str:
    """The whole report: what was measured, a table per bandwidth, and where dense wins.

    Args:
        subject: what is trained.
        step: its measured forward and backward pass.
        predictions: all of them.
        notes: for the user.
        latency: in ms.
        error: relative, of the calibration.
    """
    numbers = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
    lines = [
        f'{numbers:,} parameters; forward and backward pass {number(1e3 * step.backward)} ms',
        *(f'note: {note}' for note in notes),
        f'\nms per step (scaling efficiency), latency {latency:g} ms',
    ]
    for bandwidth in dict.fromkeys(each.bandwidth for each in predictions):
        lines += ['', *table([each for each in predictions if each.bandwidth == bandwidth], error)]
    return '\n'.join([*lines, '', *closing(predictions, error)])


def table(predictions: Sequence[Prediction], error: float = 0.0) -> list[str]:
    """The lines of one bandwidth: one per composition, then the winners and their rivals.

    A dash is a number of workers that an exchange does not serve.

    Args:
        predictions: of one bandwidth.
        error: relative, of the calibration. Compositions that it cannot tell apart share the win.
    """
    workers = list(dict.fromkeys(each.workers for each in predictions))
    names = list(dict.fromkeys(each.composition for each in predictions))
    found = {(each.composition, each.workers): each for each in predictions}
    best = [first(predictions, count) for count in workers]

    def cell(name: str, count: int) -> str:
        each = found.get((name, count))
        return '-' if each is None else f'{number(each.ms)} ({each.efficiency:.0%})'

    rows = [[predictions[0].bandwidth, *(f'{count:,} workers' for count in workers)]]
    rows += [[name, *(cell(name, count) for count in workers)] for name in names]
    rows.append(['wins', *(winner(contenders(predictions, count, error)) for count in workers)])
    rows.append(['rival takes', *(rival(predictions, each) for each in best)])
    return align(rows, right=True)


def rival(predictions: Sequence[Prediction], best: Prediction) -> str:
    """How many times as long as the winner its rival takes.

    The rival of a compressing winner is dense; that of dense is the fastest compressing one.
    """
    cells = [each for each in predictions if each.workers == best.workers]
    others = [each for each in cells if (each.composition == DENSE) != (best.composition == DENSE)]
    if not others:
        return '-'
    other = min(others, key=lambda each: each.ms)
    return f'{other.composition} ×{number(other.ms / best.ms, 2)}'


def first(predictions: Sequence[Prediction], workers: int) -> Prediction:
    """The fastest with a number of workers; of equally fast ones, dense."""
    cells = [each for each in predictions if each.workers == workers]
    return min(cells, key=lambda each: (each.ms, each.composition != DENSE))


def contenders(predictions: Sequence[Prediction], workers: int, error: float) -> list[Prediction]:
    """The fastest with a number of workers, and those that take less than ``1 + error`` times as
    long: a calibration with such an error cannot tell them apart."""
    best = first(predictions, workers)
    cells = [each for each in predictions if each.workers == workers and each is not best]
    near = [each for each in cells if each.ms < (1 + error) * best.ms]
    return [best, *sorted(near, key=lambda each: each.ms)]


def winner(equals: Sequence[Prediction]) -> str:
    """The cell for compositions that cannot be told apart, the fastest first."""
    names = [each.composition for each in equals]
    if len(names) > 1 and DENSE in names:
        return 'cannot tell'
    return ' or '.join(names if len(names) <= 2 else [names[0], f'{len(names) - 1} others'])


def closing(predictions: Sequence[Prediction], error: float = 0.0) -> list[str]:
    """A line for each bandwidth at which dense wins, or may win."""
    lines, everywhere = [], True
    for bandwidth in dict.fromkeys(each.bandwidth for each in predictions):
        cells = [each for each in predictions if each.bandwidth == bandwidth]
        workers = list(dict.fromkeys(each.workers for each in cells))
        cells_of = {count: winner(contenders(cells, count, error)) for count in workers}
        won = [count for count in workers if cells_of[count] == DENSE]
        open_ = [count for count in workers if cells_of[count] == 'cannot tell']
        everywhere = everywhere and won == workers
        if won:
            among = ', '.join(f'{count:,}' for count in won)
            lines.append(
                f'dense wins at {bandwidth} with {among} workers: compression is not worth it there'
            )
        if open_:
            among = ', '.join(f'{count:,}' for count in open_)
            lines.append(
                f'cannot tell at {bandwidth} with {among} workers: dense and compressed training '
                f"differ by less than the calibration's error of {error:.0%} (calibrate again, "
                'without other load on this host)'
            )
    if everywhere:
        return ['dense wins everywhere: compression is not worth it on these networks']
    return lines or ['dense wins nowhere']


def rows(predictions: Sequence[Prediction], error: float = 0.0) -> list[dict[str, Any]]:
    """The rows of the JSON file; ``wins`` is None where the calibration's error cannot tell."""
    found = []
    for each in predictions:
        cells = [other for other in predictions if other.bandwidth == each.bandwidth]
        best, *near = contenders(cells, each.workers, error)
        wins = None if near and each in (best, *near) else each is best
        found.append({**each._asdict(), 'wins': wins})
    return found
