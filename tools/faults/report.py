"""The tables of docs/reliability.md from the lines of results."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.harness.tables import markdown_table

FAILED = 1  # exit code of the commands where something went wrong
TITLES = {
    'times': 'at random times',
    'writes': 'while a file is written',
    'restarts': '`--max-restarts 3`',
}

Lines = Sequence[Mapping[str, Any]]


def tables(lines: Lines) -> str:
    """Both tables, in Markdown."""
    head = ['run', 'faults', 'runs', 'same bits', 'steps again: median, most']
    head += ['seconds to go on: median, 95 %']
    blocks = []
    if rows := list(run_rows(lines)):
        blocks.append(markdown_table(head, rows))
    if rows := damage_rows(lines):
        blocks.append(markdown_table(('damage', 'checkpoints', 'counted'), rows))
    return '\n\n'.join(blocks)


def run_rows(lines: Lines) -> Iterable[list[str]]:
    """A row for each launcher, and each kind of fault to it."""
    groups: dict[tuple[str, str, str], list[tuple[int, Mapping[str, Any]]]] = {}
    for number, line in enumerate(lines):
        if line['kind'] in TITLES:
            name = line['launcher'], line['kind']
            for fault in line['faults']:
                groups.setdefault((*name, fault['what']), []).append((number, fault))
    kinds = [*TITLES]
    for group in sorted(groups, key=lambda group: (kinds.index(group[1]), group[0], group[2])):
        (launcher, kind, what), faults = group, groups[group]
        runs = {number for number, _ in faults}
        same = sum(not lines[number]['wrong'] for number in runs)
        counted = [f for _, f in faults if kind != 'writes' or f['partial'] is not None]
        again = [f['again'] for f in counted if f['again'] is not None]
        seconds = [f['seconds'] for f in counted if f['seconds'] is not None]
        yield [
            launcher,
            f'{len(counted)} × {what} {TITLES[kind]}',
            str(len(runs)),
            f'{same} of {len(runs)}',
            f'{statistics.median(again):g}, {max(again)}' if again else '',
            f'{statistics.median(seconds):.0f}, {quantile(seconds):.0f}' if seconds else '',
        ]


def quantile(numbers: Sequence[float], part: float = 0.95) -> float:
    """The smallest number that this part of the numbers does not exceed."""
    return sorted(numbers)[min(int(part * len(numbers)), len(numbers) - 1)]


def damage_rows(lines: Lines) -> list[list[str]]:
    """A row for each kind of damage."""
    done, good = Counter[str](), Counter[str]()
    for line in lines:
        if line['kind'] == 'damage':
            done[line['what']] += 1
            good[line['what']] += not line['wrong']
    return [[what, str(number), str(good[what])] for what, number in done.items()]
