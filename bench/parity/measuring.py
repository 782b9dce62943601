"""Training what a command line asks for, and what the file of results does not have yet."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.parity.rows import REPEATED, Row, impossible
from bench.parity.training import (
    CPU,
    Result,
    Run,
    discard_checkpoints,
    failure,
    planned,
    result,
    train,
)
from bench.parity.workloads import Workload
from tools.harness.cli import log
from utils.files import append_line
from utils.lines import json_lines


def reasons(arguments: Namespace) -> dict[str, str]:
    """Return why rows cannot be trained in the workload, by name."""
    found = {row.name: impossible(row, arguments.what) for row in arguments.compared}
    return {name: reason for name, reason in found.items() if reason is not None}


def plan(arguments: Namespace) -> list[Run]:
    """Return what the command line asks for: the first seed of all rows, then the next one.

    Raises:
        ValueError: For a setting of the command line that none of the rows has.
    """
    what: Workload = arguments.what
    refused = reasons(arguments)
    possible: list[Row] = [row for row in arguments.compared if row.name not in refused]
    counts = {
        row.name: arguments.seeds if row.name in REPEATED else arguments.other_seeds
        for row in possible
    }
    data, runs = arguments.data.absolute(), []
    for seed in range(max(counts.values(), default=0)):
        for row in possible:
            if seed < counts[row.name]:
                about = arguments.workload, what, row, seed, arguments.workers
                where = arguments.engine, arguments.device
                runs.append(planned(*about, *where, data, arguments.overrides))
    for name in arguments.overrides:
        if runs and not any(name in run.settings or name in run.others for run in runs):
            raise ValueError(f'--{name}: none of the rows has this setting')
    return runs


def known(runs: Sequence[Run], results: Path) -> dict[str, Result]:
    """Return the results of a file that are those of ``runs``, by the name of the run."""
    lines, found = json_lines(results), {}
    for run in runs:
        asked = run.asked.items()
        there = (each for each in lines if each.get('device', CPU) == run.device)
        line = next((each for each in there if asked <= each.items()), None)
        if line is not None:
            found[run.name] = line
    return found


def measure(runs: Sequence[Run], arguments: Namespace) -> tuple[dict[str, Result], dict[str, str]]:
    """Train what the file of results does not have yet.

    Returns:
        The results of ``runs`` by the name of the run, and what failed: reasons by row.
    """
    folder, metric = arguments.runs.absolute(), arguments.what.metric.name
    results, failed = known(runs, arguments.results), {}
    missing = [] if arguments.table else [run for run in runs if run.name not in results]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
    with closing(train(missing, folder, arguments.jobs)) as training:
        for run, status in training:
            try:
                if status:
                    raise ValueError(failure(run, folder, status))
                line = result(run, folder, metric)
            except ValueError as error:
                failed[run.row] = str(error)
                log(f'{run.name}: {error}')
                continue
            results[run.name] = line
            append_line(arguments.results, json.dumps(line))
            discard_checkpoints(run, folder)
            log(f'{run.name}: {metric}={line["value"]:g}, {len(results)} of {len(runs)} runs')
    return results, failed
