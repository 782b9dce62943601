"""From the workers' samples to rows of a table, as JSON and for people."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bench.rows import COMPRESSED, Row, all_rows
from tools.harness.algorithms import COMPUTE, DENSE
from tools.harness.tables import megabytes, number

Result = dict[str, Any]  # a row of the JSON file

REFERENCE = 'ddp'
PHASES = ('compress', 'communicate', 'wait')
COLUMNS = (
    'row', 'ms', 'min to max', 'cpu', '× compute', '× ddp', 'MB sent', 'codec', 'rest',
    'compute', 'compress', 'commun.', 'wait',
)  # fmt: skip
LEGEND = """\
ms: median per step; cpu: processor time of a worker per step; × compute: ms over that of compute;
× ddp: ms of ddp over that of the row, so a larger number is faster. MB sent: by a node per step, as
the kernel counts; codec: gradients, by our own count; rest: the difference, which is headers and
control messages. compute to wait: ms per step; compress and communicate overlap with compute, wait
is the time in which the worker only waits for them."""


def result(row: Row, about: dict[str, Any], outcome: dict[str, Any]) -> Result:
    """A row of the JSON file, without the ratios to other rows.

    Args:
        row: that was measured.
        about: further keys, which are copied.
        outcome: {'error': reason} or {'steps', 'samples', 'plan'}.
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


def median(values: Iterable[float]) -> float | None:
    """The median; None if it is NaN."""
    middle = statistics.median(values)
    return None if math.isnan(middle) else middle


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, quartiles and maximum."""
    low, middle, high = (
        statistics.quantiles(values, n=4, method='inclusive') if len(values) > 1 else 3 * [*values]
    )
    return {'min': min(values), 'q1': low, 'median': middle, 'q3': high, 'max': max(values)}


def in_order(results: Sequence[Result]) -> list[Result]:
    """Sort results by the order of the rows."""
    places = {row.name: place for place, row in enumerate(all_rows())}
    return sorted(results, key=lambda each: places[each['name']])


def compare(results: Sequence[Result]) -> list[Result]:
    """Add each row's ratios to other rows at the same rate; None if there is no such row.

    vs_compute: its time over that of compute in the same engine's processes.
    speedup_vs_ddp: the time of ddp over its own.
    """
    times = {
        (each['rate'], each['engine'], each['row']): each['median_ms']
        for each in results
        if 'median_ms' in each
    }
    compared = []
    for each in results:
        own = each.get('median_ms')
        if own is not None:
            compute = times.get((each['rate'], each['engine'], COMPUTE))
            ddp = times.get((each['rate'], 'torch', REFERENCE))
            each = {
                **each,
                'vs_compute': own / compute if compute else None,
                'speedup_vs_ddp': ddp / own if ddp else None,
            }
        compared.append(each)
    return compared


def table(results: Sequence[Result]) -> str:
    """The aligned rows of one rate. Columns without any value are omitted."""
    lines = [COLUMNS, *map(cells, results)]
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    text = []
    for line, each in zip(zip(*columns, strict=True), [{}, *results], strict=True):
        name, *numbers = map(str.rjust, line, widths)
        if 'error' in each:  # instead of the numbers, as long as it may be
            numbers = [f'failed: {each["error"]}']
        text.append('  '.join([name.lstrip().ljust(widths[0]), *numbers]).rstrip())
    return '\n'.join(text)


def cells(each: Result) -> tuple[str, ...]:
    """The cells of a row, in the order of COLUMNS; a failed row has only its name."""
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


def title(results: Sequence[Result]) -> str:
    """The line above a table: what was trained, and where."""
    first = max(results, key=len)  # a failed row has fewer keys
    size = f', {first["parameters"] / 1e6:.2f} M parameters' if 'parameters' in first else ''
    package = f', {first["dgc"]}' if 'dgc' in first else ''
    return (
        f'{first["model"]}{size}, batch {first["batch"]} per node, {first["nodes"]} nodes, links '
        f'{first["rate"]}{package}'
    )


def closing(results: Sequence[Result]) -> str:
    """Which row was the fastest at each rate, and at which rates a dense one was."""
    lines, dense_wins, rates = [], [], list(dict.fromkeys(each['rate'] for each in results))
    for rate in rates:
        raced = [each for each in results if each['rate'] == rate and each['kind'] != COMPUTE]
        finished = sorted((r for r in raced if 'error' not in r), key=lambda r: r['median_ms'])
        if not finished:
            continue
        first = finished[0]
        lines.append(
            f'fastest at {rate}: {first["name"]}, {number(first["median_ms"])} ms per step'
        )
        if first['kind'] == DENSE:
            rival = next((r for r in finished if r['kind'] == COMPRESSED), None)
            behind = (
                rival and f'{rival["name"]} takes {rival["median_ms"] / first["median_ms"]:.2f}'
            )
            dense_wins.append(f'{rate}' + (f' ({behind} times as long)' if behind else ''))
    if not lines:
        return 'no row was measured'
    dense = f'dense wins at {", ".join(dense_wins)}' if dense_wins else 'dense wins nowhere'
    return '\n'.join([*lines, dense])
