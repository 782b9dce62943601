"""What the command does: plan for a stack, and compare predictions with a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from datasets import DatasetError
from dgc import Composition
from dgc.costmodel import Calibration
from tools.cluster.rates import parse_rate
from tools.harness.algorithms import DENSE, algorithm
from tools.harness.cli import log
from tools.harness.spec import write_json
from tools.plan import calibration, check, gantt, report
from tools.plan.compositions import Candidate, Comparison, UnfitError, comparison, unfit
from tools.plan.division import divisions
from tools.plan.measure import Bench
from tools.plan.predict import Measured, Setting, predict
from tools.plan.report import Prediction
from tools.plan.rounds import rounds_of
from tools.plan.subject import Subject, of_stack, of_workload
from utils.checks import check_settings
from utils.cli import Refused
from utils.config import Config, ConfigError


def run(arguments: argparse.Namespace, configs: Config | None) -> None:
    """Carry out the command.

    Args:
        arguments: parsed command line.
        configs: configuration of the stack; None if there is none.

    Raises:
        Refused: for invalid input, in one line for the user.
    """
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


def stack(configs: Config) -> tuple[Subject, Comparison]:
    """What a configuration trains, and what its composition is compared with. Raises Refused."""
    try:
        check_settings(configs)
        if not isinstance(configs.train.compression.build(), Composition):
            raise ValueError('asynchronous training is not predicted: leave out configs/dgs/')
        rounds = rounds_of(configs.train.averaging.build())
        subject, compared = of_stack(configs), comparison(configs.train.compression.build, rounds)
        own = compared.own()
        own.planner.plan(subject.request(own))  # more fragments than layers are refused
        return subject, compared
    except (ConfigError, DatasetError, ValueError, TypeError) as error:
        raise Refused(str(error)) from error


def plan(
    subject: Subject, compared: Comparison, host: Calibration, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Measure, predict and print; return the keys of the JSON file. Raises Refused."""
    workers = arguments.workers
    if arguments.timeline is not None:
        if any(each.rounds is not None for each in compared.candidates):
            raise Refused('--timeline shows an exchange of gradients: your stack has local steps')
        if reason := unfit(compared.own().exchange, workers[0]):
            raise Refused(
                f'--timeline is of {workers[0]} workers, the fewest of --workers: {reason}'
            )
    bench = Bench(subject, workers)
    measured, notes = survey(bench, compared.candidates)
    predictions = [
        predicted(each, bench, host, bandwidth, count, arguments)
        for bandwidth in arguments.bandwidths
        for count in workers
        for each in measured
        if not unfit(each.exchange, count)
    ]
    notes = [*compared.notes, *notes]
    print(report.plan(subject, bench.step, predictions, notes, arguments.latency, host.error))
    if arguments.timeline is not None:
        print(f'\n{timeline(bench, compared, host, arguments)}')
    if arguments.png is not None:
        from tools.plan.figure import draw  # matplotlib takes a second to import

        draw(predictions, arguments.latency, arguments.png)
    return {
        'backward_ms': 1e3 * bench.step.backward,
        'optimizer_ms': {each.name: 1e3 * each.optimizer for each in measured},
        'outer_ms': {each.name: 1e3 * each.outer for each in measured if each.rounds},
        'predictions': report.rows(predictions, host.error),
    }


def setting(workers: int, bandwidth: str, latency: float, arguments: argparse.Namespace) -> Setting:
    """What to predict for. latency: in ms."""
    rate, seconds = parse_rate(bandwidth), 1e-3 * latency
    return Setting(workers, rate, seconds, arguments.sharing, arguments.pipeline)


def timeline(
    bench: Bench, compared: Comparison, host: Calibration, arguments: argparse.Namespace
) -> str:
    """The timelines of the stack's step, at the first bandwidth, with the fewest workers.

    They are also drawn if the option names a file. Raises Refused.
    """
    bandwidth, workers = arguments.bandwidths[0], arguments.workers[0]
    place = setting(workers, bandwidth, arguments.latency, arguments)
    log('measuring buckets of several sizes')
    try:
        found = divisions(bench, compared.own, host, place)
    except UnfitError as error:
        raise Refused(str(error)) from error
    title = f'{workers} workers, {bandwidth}, latency {arguments.latency:g} ms'
    if arguments.timeline:
        gantt.draw(found, title, Path(arguments.timeline))
    merged = found[-1].plan
    return f'{title}; {gantt.text(found)}\n\nmerged, {merged.summary()}\n{merged.table()}'


def survey(bench: Bench, candidates: Sequence[Candidate]) -> tuple[list[Measured], list[str]]:
    """Measure all compositions that can be; return them, and why the others were not measured.

    Raises:
        Refused: none of them can be measured.
    """
    measured, notes = [], []
    for candidate in candidates:
        log(f'measuring {candidate.name.split(" [")[0]}')
        try:
            measured.append(bench.composition(candidate))
        except UnfitError as error:
            notes.append(f'{candidate.name} is excluded: {error}')
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
    """Predict one composition with a number of workers at a bandwidth."""
    sharing = arguments.sharing
    place = setting(workers, bandwidth, arguments.latency, arguments)
    seconds = predict(measured, bench.step, host, place, slowdown=sharing)
    alone = sharing * (bench.step.backward + measured.optimizer)
    return Prediction(bandwidth, workers, measured.name, 1e3 * seconds, alone / seconds)


def compare(
    table: check.Table, host: Calibration, arguments: argparse.Namespace
) -> list[check.Cell]:
    """Predict every row of a table. A step without exchange takes what the table says it takes."""
    torch.set_num_threads(table.threads)
    subject = of_workload(table.model, table.batch)
    bench = Bench(subject, [table.nodes])
    candidates = [check.candidate(name, row) for name, row in table.subjects.items()]
    measured, notes = survey(bench, candidates)
    for note in notes:
        log(note)
    alone = bench.step.backward + bench.update(algorithm(DENSE))
    by_subject = {each.name: each for each in measured}
    cells = []
    for row in table.rows:
        if check.subject(row) in by_subject:
            slowdown = 1e-3 * table.compute[row['rate']] / alone
            latency = 0.0 if row['rate'] == 'none' else arguments.latency
            place = setting(table.nodes, row['rate'], latency, arguments)
            one = by_subject[check.subject(row)]
            seconds = predict(one, bench.step, host, place, slowdown)
            cells.append(check.cell(row, 1e3 * seconds))
    return cells
