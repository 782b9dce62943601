"""Predictions compared with a table that `python -m bench.cluster --json` wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dgc import Composition
from dgc.planner import Plan, Replay
from tools.cluster.rates import parse_rate
from tools.harness.algorithms import COMPUTE, canonical, compositions
from tools.harness.tables import number
from tools.harness.workloads import WORKLOADS
from tools.plan.compositions import Candidate
from utils.cli import Refused

CLOSE = 0.25  # largest relative error of a prediction that is counted as right
ENGINE = 'torch'  # only rows of this engine are predicted: the host is calibrated with it


class Table(NamedTuple):
    """The part of a table that can be predicted.

    threads: per worker. compute: ms of a step without exchange, by rate.
    rows: of our compositions. others: names of all other rows.
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
        """One row for each different pair of composition and buckets, by their identification."""
        return {subject(row): row for row in self.rows}


class Cell(NamedTuple):
    """One row at one rate, in ms. low, high: minimum and maximum of the measured times."""

    rate: str
    name: str
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Error of the prediction, relative to the measured time."""
        return self.predicted / self.measured - 1


def subject(row: dict[str, Any]) -> str:
    """Identification of what is measured for a row: its composition, with its buckets."""
    plan = row.get('plan')
    return row['row'] if plan is None else f'{row["row"]} {json.dumps(plan["buckets"])}'


def read(file: Path) -> Table:
    """Read the table in a file.

    Raises:
        Refused: the file is no such table, or nothing in it can be predicted.
    """
    try:
        table = parse(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(
            f'--check: {file} is no table of `python -m bench.cluster --json`: {error!r}'
        ) from error
    if not table.rows:
        raise Refused(
            f"--check: {file} has nothing to predict: that needs the row '{COMPUTE} ({ENGINE})' of "
            f'a rate, and rows of ours under {ENGINE}, which are {", ".join(compositions())}'
        )
    if table.model not in WORKLOADS:
        raise Refused(
            f'--check: {file} is of the model {table.model!r}: tools/harness/workloads.py has '
            f'{", ".join(WORKLOADS)}'
        )
    return table


def parse(results: Sequence[dict[str, Any]]) -> Table:
    """The table of a JSON file's rows. Raises ValueError or KeyError if they are no such rows."""
    measured = [row for row in results if 'error' not in row]
    subjects = {(row['model'], row['batch'], row['nodes'], row['threads']) for row in measured}
    if len(subjects) != 1:
        raise ValueError('it should be of one model, batch, and number of nodes and threads')
    ours = [row for row in measured if row['engine'] == ENGINE]
    compute = {row['rate']: row['median_ms'] for row in ours if row['row'] == COMPUTE}
    known = compositions()
    rows = [row for row in ours if canonical(row['row']) in known and row['rate'] in compute]
    for row in rows:
        parse_rate(row['rate'])
        plan_of(row)
    names = {row['name'] for row in rows}
    others = [row['name'] for row in measured if row['row'] != COMPUTE and row['name'] not in names]
    return Table(*subjects.pop(), compute, rows, list(dict.fromkeys(others)))


def plan_of(row: dict[str, Any]) -> Plan | None:
    """The buckets of a row. Raises ValueError, TypeError or KeyError if they are no plan."""
    saved = row.get('plan')
    return None if saved is None else Plan.from_json(saved)


def candidate(name: str, row: dict[str, Any]) -> Candidate:
    """The composition of a row, with the buckets that the row had. name: of the candidate."""
    make, plan = compositions()[canonical(row['row'])], plan_of(row)

    def replaying() -> Composition:
        return replace(make(), planner=Replay('the table'))

    return Candidate(name, make if plan is None else replaying, plan)


def cell(row: dict[str, Any], predicted: float) -> Cell:
    """A row of the table with its prediction, in ms."""
    spread = row['spread']
    measured = row['median_ms']
    return Cell(row['rate'], row['name'], predicted, measured, spread['min'], spread['max'])


def report(table: Table, cells: Sequence[Cell]) -> str:
    """Text for people: every cell, how many are right, and whether the winners are."""
    lines = [
        f'{table.model}, batch {table.batch}, {table.nodes} nodes: predicted and measured ms '
        'per step',
        f'{"rate":10}{"row":26}{"predicted":>12}{"measured":>12}{"error":>9}',
    ]
    for each in cells:
        times = f'{number(each.predicted):>12}{number(each.measured):>12}'
        lines.append(f'{each.rate:10}{each.name:26}{times}{each.error:>+9.0%}')
    close = sum(abs(each.error) <= CLOSE for each in cells)
    lines.append(f'{close} of {len(cells)} within {CLOSE:.0%}')
    rates = dict.fromkeys(each.rate for each in cells)
    lines += [winner([each for each in cells if each.rate == rate]) for rate in rates]
    if table.others:
        lines.append(f'not predicted: {", ".join(table.others)}')
    return '\n'.join(lines)


def winner(cells: Sequence[Cell]) -> str:
    """For one rate, whether the predicted winner was the measured one, or was as fast.

    It was as fast if its median lies within the spread of the measured winner's times.
    """
    expected = min(cells, key=lambda each: each.predicted)
    first = min(cells, key=lambda each: each.measured)
    begin = f'{expected.rate}: {expected.name} is predicted to win, '
    if expected.name == first.name:
        return f'{begin}and does'
    times = f'{first.name} does, {number(first.measured)} to {number(expected.measured)} ms'
    if expected.measured <= first.high:
        return f'{begin}and is as good: {times}, but takes up to {number(first.high)}'
    return f'{begin}which is wrong: {times}'
