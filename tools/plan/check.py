"""Predictions beside a table that `python -m bench.cluster --json` wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import dgc
from bench.report import number
from bench.rows import COMPOSITIONS, COMPUTE
from bench.workloads import WORKLOADS
from dgc.planner import Plan, Replay
from tools.cluster.rates import parse_rate
from tools.plan.compositions import Make
from utils.cli import Refused

CLOSE = 0.25  # an error that is no more is called right
ENGINE = 'torch'  # whose rows: the host is calibrated with it


class Table(NamedTuple):
    """What was measured, as far as it can be predicted.

    threads: of a worker. compute: ms of a step without the others, by rate.
    rows: of compositions of ours. others: names of the rows that are not.
    """

    model: str
    batch: int
    nodes: int
    threads: int
    compute: dict[str, float]
    rows: list[dict[str, Any]]
    others: list[str]

    @property
    def subjects(self) -> dict[str, dict[str, Any]]:
        """Rows of which no two have the same composition and buckets, by what tells them apart."""
        return {subject(row): row for row in self.rows}


class Cell(NamedTuple):
    """One row at one rate. All in ms; low, high: the least and the greatest measured."""

    rate: str
    name: str
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured."""
        return self.predicted / self.measured - 1


def subject(row: dict[str, Any]) -> str:
    """What is measured of a row: its composition, with its buckets."""
    plan = row.get('plan')
    return row['row'] if plan is None else f'{row["row"]} {json.dumps(plan["buckets"])}'


def read(file: Path) -> Table:
    """The table in a file. Raises Refused where it is none, or none that can be predicted."""
    try:
        table = parse(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(
            f'--check: {file} is no table of `python -m bench.cluster --json`: {error!r}'
        ) from error
    if not table.rows:
        raise Refused(
            f"--check: {file} has nothing to predict: that takes the row 'compute (torch)' of a "
            f'rate, and rows of ours under torch, which are {", ".join(COMPOSITIONS)}'
        )
    if table.model not in WORKLOADS:
        raise Refused(
            f'--check: {file} is of the model {table.model!r}: bench/workloads.py knows '
            f'{", ".join(WORKLOADS)}'
        )
    return table


def parse(results: Sequence[dict[str, Any]]) -> Table:
    """From the rows of the JSON file. Raises ValueError or KeyError for what they should not be."""
    measured = [row for row in results if 'error' not in row]
    subjects = {(row['model'], row['batch'], row['nodes'], row['threads']) for row in measured}
    if len(subjects) != 1:
        raise ValueError('it should be of one model, batch, and number of nodes and threads')
    ours = [row for row in measured if row['engine'] == ENGINE]
    compute = {row['rate']: row['median_ms'] for row in ours if row['row'] == COMPUTE}
    rows = [row for row in ours if row['row'] in COMPOSITIONS and row['rate'] in compute]
    for row in rows:
        parse_rate(row['rate'])
    names = {row['name'] for row in rows}
    others = [row['name'] for row in measured if row['row'] != COMPUTE and row['name'] not in names]
    return Table(*subjects.pop(), compute, rows, list(dict.fromkeys(others)))


def maker(base: str, plan: dict[str, Any] | None = None) -> Make:
    """Makes the composition of a row, with the buckets that it had."""

    def make() -> dgc.Composition:
        composition = COMPOSITIONS[base](dgc)
        if plan is None:
            return composition
        return replace(composition, planner=Replay('the table', Plan.from_json(plan)))

    return make


def cell(row: dict[str, Any], predicted: float) -> Cell:
    """A row of the table with its prediction, in ms."""
    spread = row['spread']
    measured = row['median_ms']
    return Cell(row['rate'], row['name'], predicted, measured, spread['min'], spread['max'])


def report(table: Table, cells: Sequence[Cell]) -> str:
    """What a person reads: each cell, how many are right, and whether the winners are."""
    title = f'{table.model}, batch {table.batch}, {table.nodes} nodes: predicted beside measured'
    head = f'{"rate":10}{"row":26}{"predicted":>12}{"measured":>12}{"error":>9}'
    close = sum(abs(each.error) <= CLOSE for each in cells)
    lines = [title, head, *map(line, cells), f'{close} of {len(cells)} within {CLOSE:.0%}']
    rates = dict.fromkeys(each.rate for each in cells)
    lines += [winner([each for each in cells if each.rate == rate]) for rate in rates]
    if table.others:
        lines.append(f'not predicted: {", ".join(table.others)}')
    return '\n'.join(lines)


def line(each: Cell) -> str:
    """One cell."""
    times = f'{number(each.predicted):>12}{number(each.measured):>12}'
    return f'{each.rate:10}{each.name:26}{times}{each.error:>+9.0%}'


def winner(cells: Sequence[Cell]) -> str:
    """Of one rate: whether who was predicted to win did, or was as good as who did."""
    expected = min(cells, key=lambda each: each.predicted)
    first = min(cells, key=lambda each: each.measured)
    begin = f'{expected.rate}: {expected.name} is predicted to win, '
    if expected.name == first.name:
        return f'{begin}and does'
    times = f'{first.name} does, {number(first.measured)} to {number(expected.measured)} ms'
    if expected.measured <= first.high:
        return f'{begin}and is as good: {times}, but takes up to {number(first.high)}'
    return f'{begin}which is wrong: {times}'
