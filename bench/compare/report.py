"""The table: quality, bytes, and seconds on a link, the fastest to a quality first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.compare.curves import Clock, Curve, Result
from bench.parity.summary import behind, interval
from bench.parity.workloads import Metric
from tools.harness.algorithms import DENSE
from tools.harness.tables import markdown_table, number

NO_CLOCK = 'asynchronous: its workers do not wait for one another'


@dataclass(frozen=True)
class Group:
    """The runs of a row.

    Attributes:
        name: Of the row.
        lines: One for each seed.
        curves: Of those; empty for a row with a parameter server.
    """

    name: str
    lines: Sequence[Result]
    curves: Sequence[Curve]

    @property
    def values(self) -> dict[int, float]:
        """The metric at the end, by seed."""
        return {line['seed']: line['value'] for line in self.lines}

    @property
    def seconds(self) -> float | None:
        """Seconds to the end, mean over the seeds."""
        return statistics.mean(c.seconds[-1] for c in self.curves) if self.curves else None

    def seconds_to(self, target: float, metric: Metric) -> list[float]:
        """Seconds to a quality, of the seeds that reach it."""
        found = (curve.seconds_to(target, metric) for curve in self.curves)
        return [seconds for seconds in found if seconds is not None]

    def total(self, name: str) -> float:
        """The sum over the epochs of what is measured in each, mean over the seeds."""
        return statistics.mean(sum(line['of_epochs'][name]) for line in self.lines)


def grouped(lines: Iterable[Result], names: Sequence[str], clock: Clock) -> list[Group]:
    """Return the rows that have results, in the order of their names."""
    of_row: dict[str, list[Result]] = {name: [] for name in names}
    for line in lines:
        of_row[line['row']].append(line)
    return [
        Group(name, found, [Curve.of(line, clock) for line in found if 'of_epochs' in line])
        for name, found in of_row.items()
        if found
    ]


def stated_target(groups: Iterable[Group], metric: Metric) -> float | None:
    """Return the quality that counts as equal to dense training's; None without a dense run."""
    dense = next((group for group in groups if group.name == DENSE), None)
    return None if dense is None else metric.as_good_as(statistics.mean(dense.values.values()))


def table(
    groups: Sequence[Group],
    metric: Metric,
    target: float | None,
    missing: Mapping[str, str],
) -> str:
    """Return a table in Markdown, a line for each row.

    Args:
        groups: The rows that have results.
        metric: What is compared.
        target: The quality to reach; None where there is none.
        missing: By row, why it has no results.
    """
    dense = next((group.values for group in groups if group.name == DENSE), {})
    has_tokens = any(line.get('tokens_per_sample') for group in groups for line in group.lines)
    better, sign = ('higher', '≥') if metric.higher else ('lower', '≤')
    goal = '' if target is None else f' to {sign} {target:.{metric.digits}f}'
    head = ['row', 'seeds', f'{metric.name} ({better} is better)', f'behind dense, {metric.unit}']
    head += ['kB sent per step', 'kB received', *(['bytes sent per token'] if has_tokens else [])]
    head += ['fewer bytes than dense fp32', 'seconds', f'seconds{goal}']
    ordered = sorted(groups, key=lambda group: speed(group, target, metric))
    rows = [cells(group, dense, metric, target, has_tokens) for group in ordered]
    rows += [[name, '0', reason, *[''] * (len(head) - 3)] for name, reason in missing.items()]
    return markdown_table(head, rows)


def speed(group: Group, target: float | None, metric: Metric) -> tuple[float, float]:
    """By what rows are ordered: seconds to the quality if all seeds reach it, then to the end."""
    reached = [] if target is None else group.seconds_to(target, metric)
    complete = bool(reached) and len(reached) == len(group.lines)
    last = math.inf if group.seconds is None else group.seconds
    return statistics.mean(reached) if complete else math.inf, last


def cells(
    group: Group,
    dense: Mapping[int, float],
    metric: Metric,
    target: float | None,
    has_tokens: bool,
) -> list[str]:
    """Return the cells of one row."""
    behinds = behind(group.values, dense, metric) if group.name != DENSE else []
    first = [
        group.name,
        str(len(group.lines)),
        interval([*group.values.values()], digits=metric.digits),
        interval(behinds, '+') if behinds else '',
    ]
    if not group.curves:
        each_way = [
            number(statistics.mean(line[name] for line in group.lines) / 1e3, 2)
            for name in ('bytes_per_step', 'received_per_step')
        ]
        return [*first, *each_way, *[''] * has_tokens, '', NO_CLOCK, '']
    steps, sent = group.total('steps'), group.total('bytes/sent')
    line: Mapping[str, Any] = group.lines[0]
    tokens = (line['tokens_per_sample'] or 0) * line['samples_per_step'] / line['workers']
    per_token = number(sent / steps / tokens, 2) if tokens else ''
    return [
        *first,
        number(sent / steps / 1e3, 2),
        number(group.total('bytes/received') / steps / 1e3, 2),
        *([per_token] if has_tokens else []),
        f'{number(group.total("bytes/dense") / sent, 1)}×' if sent else '',
        number(group.seconds),
        '' if target is None else reaching(group, target, metric),
    ]


def reaching(group: Group, target: float, metric: Metric) -> str:
    """Return the seconds to a quality, and how many seeds reach it where not all do."""
    reached, runs = group.seconds_to(target, metric), len(group.lines)
    if not reached:
        return 'not reached'
    mean = number(statistics.mean(reached))
    return mean if len(reached) == runs else f'{mean} ({len(reached)} of {runs} seeds)'
