"""The table: each row's metric with an interval over its seeds, and how far it is behind dense."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.parity.training import Result
from bench.parity.workloads import Metric
from tools.harness.algorithms import DENSE
from tools.harness.tables import markdown_table

# 97.5 % quantiles of Student's t, by degrees of freedom from 1 on; 1.96 beyond.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def half_width(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of the mean of normal values, by Student's t.

    Args:
        values: At least two.
    """
    freedom = len(values) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float], sign: str = '', digits: int = 2) -> str:
    """Return '80.12 ± 0.34', or '80.12' of a single value.

    Args:
        values: At least one.
        sign: '+' to show the sign.
        digits: After the decimal point.
    """
    mean = f'{statistics.mean(values):{sign}.{digits}f}'
    return mean if len(values) == 1 else f'{mean} ± {half_width(values):.{digits}f}'


def behind(group: Mapping[int, float], dense: Mapping[int, float], metric: Metric) -> list[float]:
    """Return by how much a row is worse than dense training with the same seed, for each seed that
    both have."""
    return [metric.behind(value, dense[seed]) for seed, value in group.items() if seed in dense]


def verdict(behinds: Sequence[float], metric: Metric) -> str:
    """Say whether a row's mean is within the bound of the metric."""
    if not behinds:
        return ''
    return 'yes' if statistics.mean(behinds) <= metric.bound else 'no'


def table(
    results: Iterable[Result], metric: Metric, reasons: Mapping[str, str], rows: Sequence[str]
) -> str:
    """Return a table in Markdown, a line for each row.

    Args:
        results: Of one workload.
        metric: What is compared.
        reasons: By row, why it has no results.
        rows: The names, in order.
    """
    groups: dict[str, list[Result]] = {name: [] for name in rows}
    for each in results:
        groups[each['row']].append(each)
    values = {name: {e['seed']: e['value'] for e in group} for name, group in groups.items()}
    dense = values.get(DENSE, {})
    lines = []
    for name, group in groups.items():
        if not group:
            lines.append((name, '0', reasons.get(name, 'not trained yet'), '', '', '', ''))
            continue
        behinds = behind(values[name], dense, metric) if name != DENSE else []
        lines.append(
            (
                name,
                str(len(group)),
                interval(list(values[name].values()), digits=metric.digits),
                interval(behinds, '+') if behinds else '',
                verdict(behinds, metric),
                f'{statistics.mean(each["bytes_per_step"] for each in group):,.0f}',
                f'{statistics.mean(each["density"] for each in group):.3%}',
            )
        )
    better = 'higher' if metric.higher else 'lower'
    head = (
        *('row', 'seeds', f'{metric.name} ({better} is better)'),
        *(f'behind dense, {metric.unit}', f'within {metric.bound:g} {metric.unit}'),
        *('bytes sent per step', 'density'),
    )
    return markdown_table(head, lines)
