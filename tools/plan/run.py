"""What the command does: plan for a stack, and compare with a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.cluster import say
from bench.spec import write_json
from datasets import DatasetError
from dgc import Composition
from dgc.costmodel import Calibration
from tools.cluster.rates import parse_rate
from tools.plan import calibration, check, gantt, report
from tools.plan.compositions import YOURS, Candidate, Field, Make, UnfitError, field, unfit
from tools.plan.division import divisions
from tools.plan.measure import Bench
from tools.plan.predict import Measured, Setting, predict
from tools.plan.report import Prediction
from tools.plan.subject import Subject, of_stack, of_workload
from utils.cli import Refused
from utils.config import Config, ConfigError


def run(arguments: argparse.Namespace, configs: Config | None) -> None:
    """Everything that the command line asks for; ``configs`` of its stack. Raises Refused."""
    table = None if arguments.check is None else check.read(arguments.check)
    built = None if configs is None else stack(configs)
    host = calibration.obtain(arguments.calibration)
    result: dict[str, Any] = {
        'calibration': asdict(host),
        'latency_ms': arguments.latency,
        'sharing': arguments.sharing,
    }
    print(report.host(host, arguments.sharing), flush=True)
    if built is not None:
        result.update(plan(*built, host, arguments))
    if table is not None:
        cells = compare(table, host, arguments)
        result['check'] = [{**cell._asdict(), 'error': cell.error} for cell in cells]
        print(f'\n{check.report(table, cells)}')
    if arguments.json is not None:
        write_json(arguments.json, result)


def stack(configs: Config) -> tuple[Subject, Field]:
    """What the configuration trains, and what is compared. Raises Refused."""
    try:
        if not isinstance(configs.train.compression.build(), Composition):
            raise ValueError('asynchronous training is not predicted: leave out configs/dgs/')
        return of_stack(configs), field(configs.train.compression.build)
    except (ConfigError, DatasetError, ValueError, TypeError) as error:
        raise Refused(str(error)) from error


def plan(
    subject: Subject, chosen: Field, host: Calibration, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Measure, predict and tell; returns what the JSON file holds of it. Raises Refused."""
    if arguments.timeline is not None:
        check_timeline(chosen, arguments.workers[0])
    bench = Bench(subject, arguments.workers)
    measured, notes = survey(bench, chosen.candidates)
    predictions = [
        predicted(each, bench, host, bandwidth, workers, arguments)
        for bandwidth in arguments.bandwidths
        for workers in arguments.workers
        for each in measured
        if not unfit(each.exchange, workers)
    ]
    print(report.plan(subject, bench.step, predictions, [*chosen.notes, *notes], arguments.latency))
    if arguments.timeline is not None:
        print(f'\n{timeline(bench, chosen, host, arguments)}')
    if arguments.png is not None:
        from tools.plan.figure import draw  # matplotlib takes a second to import

        draw(predictions, arguments.latency, arguments.png)
    return {
        'backward_ms': 1e3 * bench.step.backward,
        'optimizer_ms': {each.name: 1e3 * each.optimizer for each in measured},
        'predictions': report.rows(predictions),
    }


def own(chosen: Field) -> Make:
    """What makes the stack's own composition."""
    return next((c.make for c in chosen.candidates if c.name == YOURS), chosen.candidates[0].make)


def check_timeline(chosen: Field, workers: int) -> None:
    """Raises Refused where the stack's exchange does not serve so many."""
    if reason := unfit(own(chosen)().exchange, workers):
        raise Refused(f'--timeline is of {workers} workers, the fewest of --workers: {reason}')


def timeline(bench: Bench, chosen: Field, host: Calibration, arguments: argparse.Namespace) -> str:
    """The stack's step divided in several ways, at the first bandwidth, among the fewest workers;
    drawn as well where a file is named. Raises Refused."""
    make, bandwidth, workers = own(chosen), arguments.bandwidths[0], arguments.workers[0]
    latency = 1e-3 * arguments.latency
    setting = Setting(workers, parse_rate(bandwidth), latency, arguments.sharing)
    say('measuring buckets of several sizes')
    try:
        found = divisions(bench, make, host, setting)
    except UnfitError as error:
        raise Refused(str(error)) from error
    title = f'{workers} workers, {bandwidth}, latency {arguments.latency:g} ms'
    if arguments.timeline:
        gantt.draw(found, title, Path(arguments.timeline))
    merged = found[-1].plan
    return f'{title}; {gantt.text(found)}\n\nmerged, {merged.summary()}\n{merged.table()}'


def survey(bench: Bench, candidates: Sequence[Candidate]) -> tuple[list[Measured], list[str]]:
    """What was measured of those that can be, and why the others are left out.

    Raises Refused where all are.
    """
    measured, notes = [], []
    for candidate in candidates:
        say(f'measuring {candidate.name.split(" [")[0]}')
        try:
            measured.append(bench.composition(candidate))
        except UnfitError as error:
            notes.append(f'{candidate.name} is left out: {error}')
    if not measured:
        raise Refused('; '.join(notes))
    return measured, notes


def predicted(
    measured: Measured,
    bench: Bench,
    host: Calibration,
    bandwidth: str,
    workers: int,
    arguments: argparse.Namespace,
) -> Prediction:
    """One composition in one cell."""
    sharing = arguments.sharing
    setting = Setting(workers, parse_rate(bandwidth), 1e-3 * arguments.latency, sharing)
    seconds = predict(measured, bench.step, host, setting, sharing)
    alone = sharing * (bench.step.backward + measured.optimizer)
    return Prediction(bandwidth, workers, measured.name, 1e3 * seconds, alone / seconds)


def compare(
    table: check.Table, host: Calibration, arguments: argparse.Namespace
) -> list[check.Cell]:
    """Every row of a table that can be predicted; its own compute alone is each step's."""
    torch.set_num_threads(table.threads)
    subject = of_workload(table.model, table.batch)
    bench = Bench(subject, [table.nodes])
    measured, notes = survey(
        bench,
        [
            Candidate(name, check.maker(row['row'], row.get('plan')))
            for name, row in table.subjects.items()
        ],
    )
    for note in notes:
        say(note)
    alone = bench.step.backward + bench.update(check.maker('dense')())
    by_subject = {each.name: each for each in measured}
    cells = []
    for row in table.rows:
        if check.subject(row) in by_subject:
            compute = table.compute[row['rate']]
            latency = 0.0 if row['rate'] == 'none' else 1e-3 * arguments.latency
            setting = Setting(table.nodes, parse_rate(row['rate']), latency, arguments.sharing)
            seconds = predict(
                by_subject[check.subject(row)], bench.step, host, setting, 1e-3 * compute / alone
            )
            cells.append(check.cell(row, 1e3 * seconds))
    return cells
