"""Measuring rows by sets of workers, again without the row at which a set of workers failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from bench.rows import Row
from bench.spec import Spec
from tools.harness.launch import describe_status, unavailable
from tools.harness.spec import Start, run_with_spec

ABOUT = ('parameters', 'torch', 'dgc', 'threads')  # keys of an answer that describe the workers


class Measured(NamedTuple):
    """about: versions and sizes that the workers report. outcomes: by row, its samples or error."""

    about: dict[str, Any]
    outcomes: dict[str, dict[str, Any]]


def launches(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows that share processes: those of one engine; rows that run alone come last."""
    together: dict[str, list[Row]] = {}
    for row in rows:
        together.setdefault(row.name if row.alone else row.engine, []).append(row)
    return sorted(together.values(), key=lambda group: group[0].alone)


def measure(spec: Spec, rows: Sequence[Row], start: Start) -> Measured:
    """Measure rows that share processes.

    If the workers break down, the row that they were measuring has failed, and the others are
    measured by new workers.

    Args:
        spec: what to measure, without rows.
        rows: of one engine.
        start: starts the workers of a folder and returns their exit status.
    """
    about: dict[str, Any] = {}
    outcomes: dict[str, dict[str, Any]] = {}
    waiting = [row.name for row in rows]
    reason = unavailable(rows[0].engine)
    while waiting and not reason:
        status, answer = run_with_spec(asdict(replace(spec, rows=waiting)), start)
        about.update({name: answer[name] for name in ABOUT if name in answer})
        if answer.get('now') == '':  # all rows are measured: a failure after that changes nothing
            outcomes.update(answer['rows'])
            return Measured(about, outcomes)
        reason = describe_status(status)
        if answer.get('now') in waiting:
            outcomes[answer['now']] = {'error': reason}
            waiting.remove(answer['now'])
            reason = ''
    outcomes.update({name: {'error': reason} for name in waiting})
    return Measured(about, outcomes)
