"""From what workers measured to rows of a table, as JSON and for people."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from bench.rows import COMPRESSED, COMPUTE, DENSE, ROWS, Row

Result = dict[str, Any]  # a row of the JSON file

REFERENCE = 'ddp'
PHASES = ('compress', 'communicate', 'wait')
COLUMNS = (
    'row', 'ms', 'min to max', 'cpu', '× compute', '× ddp', 'MB sent', 'codec', 'rest',
    'compute', 'compress', 'commun.', 'wait',
)  # fmt: skip
LEGEND = """\
ms: median a step; cpu: processor time of a worker in it; × compute: ms over that of compute;
× ddp: ms of ddp over it, so more is faster. MB sent: by a node in a step, as the kernel counts;
codec: gradients by our own count; rest: what is between them, headers and control messages.
compute to wait: ms a step; compress and communicate go on beside compute, and wait is standing
still for them."""


def result(row: Row, about: dict[str, Any], outcome: dict[str, Any]) -> Result:
    """A row of the JSON file, but for the ratios to other rows.

    about: goes in as it is. outcome: {'error': why it has none} or {'steps', 'samples'}.
    """
    common = {'name': row.name, 'row': row.base, 'engine': row.engine, 'kind': row.kind, **about}
    if outcome.get('error') or not outcome.get('samples'):
        return {**common, 'error': outcome.get('error') or 'not measured'}
    samples = outcome['samples']
    middle = {name: median(sample[name] for sample in samples) for name in samples[0]}
    kernel, codec = megabytes(middle['kernel']), megabytes(middle['codec'])
    phases = None
    if middle['wait'] is not None:
        compute = median(sample['ms'] - sample['wait'] for sample in samples)
        phases = {'compute': compute, **{phase: middle[phase] for phase in PHASES}}
    return {
        **common,
        'steps': outcome['steps'],
        'plan': outcome.get('plan'),
        'median_ms': middle['ms'],
        'spread': spread([sample['ms'] for sample in samples]),
        'samples_ms': [sample['ms'] for sample in samples],
        'cpu_ms': middle['cpu'],
        'kernel_mb': kernel,
        'codec_mb': codec,
        'control_mb': None if kernel is None or codec is None else kernel - codec,
        'phases': phases,
    }


def median(values: Any) -> float | None:
    """Of numbers; None where they are NaN."""
    middle = statistics.median(values)
    return None if math.isnan(middle) else middle


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, quartiles and greatest."""
    low, middle, high = (
        statistics.quantiles(values, n=4, method='inclusive') if len(values) > 1 else 3 * [*values]
    )
    return {'min': min(values), 'q1': low, 'median': middle, 'q3': high, 'max': max(values)}


def megabytes(count: float | None) -> float | None:
    """Of 10⁶ bytes."""
    return None if count is None else count / 1e6


def in_order(results: Sequence[Result]) -> list[Result]:
    """As the table of rows has them."""
    places = {row.name: place for place, row in enumerate(ROWS)}
    return sorted(results, key=lambda each: places[each['name']])


def compare(results: Sequence[Result]) -> list[Result]:
    """The same rows with their ratios, each to rows at its own rate; None where there are none.

    vs_compute: time over that of compute in the same kind of processes.
    speedup_vs_ddp: time of ddp over the row's own.
    """
    times = {
        (each['rate'], each['engine'], each['row']): each['median_ms']
        for each in results
        if 'median_ms' in each
    }
    compared = []
    for each in results:
        ours = each.get('median_ms')
        if ours is not None:
            compute = times.get((each['rate'], each['engine'], COMPUTE))
            ddp = times.get((each['rate'], 'torch', REFERENCE))
            each = {
                **each,
                'vs_compute': ours / compute if compute else None,
                'speedup_vs_ddp': ddp / ours if ddp else None,
            }
        compared.append(each)
    return compared


def table(results: Sequence[Result]) -> str:
    """The rows of one rate, aligned; columns in which nobody has anything are left out."""
    lines = [COLUMNS, *map(cells, results)]
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    text = []
    for line, each in zip(zip(*columns, strict=True), [{}, *results], strict=True):
        name, *numbers = map(str.rjust, line, widths)
        if 'error' in each:
            numbers = [f'failed: {each["error"]}']
        text.append('  '.join([name.lstrip().ljust(widths[0]), *numbers]).rstrip())
    return '\n'.join(text)


def cells(each: Result) -> tuple[str, ...]:
    """A line of the table; empty after the name where the row failed."""
    if 'error' in each:
        return each['name'], *[''] * (len(COLUMNS) - 1)
    limits, phases = each['spread'], each['phases'] or {}
    return (
        each['name'],
        number(each['median_ms']),
        f'{number(limits["min"])} to {number(limits["max"])}',
        number(each['cpu_ms']),
        number(each['vs_compute'], 2),
        number(each['speedup_vs_ddp'], 2),
        number(each['kernel_mb'], 3),
        number(each['codec_mb'], 3),
        number(each['control_mb'], 3),
        *(number(phases.get(phase)) for phase in ('compute', *PHASES)),
    )


def number(value: float | None, digits: int = 1) -> str:
    """Rounded; '' for None. Large ones need no digits behind the point."""
    if value is None:
        return ''
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:,.{digits}f}'


def title(results: Sequence[Result]) -> str:
    """What stands above a table."""
    first = max(results, key=len)  # one that failed does not know as much
    size = f', {first["parameters"] / 1e6:.2f} M parameters' if 'parameters' in first else ''
    dgc = f', {first["dgc"]}' if 'dgc' in first else ''
    return (
        f'{first["model"]}{size}, batch {first["batch"]} a node, {first["nodes"]} nodes, links '
        f'{first["rate"]}{dgc}'
    )


def closing(results: Sequence[Result]) -> str:
    """Which row was fastest at each rate, and where sending everything was."""
    lines, dense_wins, rates = [], [], list(dict.fromkeys(each['rate'] for each in results))
    for rate in rates:
        raced = [each for each in results if each['rate'] == rate and each['kind'] != COMPUTE]
        finished = sorted((r for r in raced if 'error' not in r), key=lambda r: r['median_ms'])
        if not finished:
            continue
        first = finished[0]
        lines.append(f'fastest at {rate}: {first["name"]}, {number(first["median_ms"])} ms a step')
        if first['kind'] == DENSE:
            rival = next((r for r in finished if r['kind'] == COMPRESSED), None)
            behind = (
                rival and f'{rival["name"]} takes {rival["median_ms"] / first["median_ms"]:.2f}'
            )
            dense_wins.append(f'{rate}' + (f' ({behind} times as long)' if behind else ''))
    if lines:
        lines.append(
            'dense wins at ' + ', '.join(dense_wins) if dense_wins else 'dense wins nowhere'
        )
    return '\n'.join(lines) if lines else 'no row was measured'
