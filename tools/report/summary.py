"""A run in one line of numbers, the task that it trains, and a short name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tools.report.read import Column, Run

NOT_OF_A_TASK = ('root', 'download', 'verify')  # settings of a dataset: where it lies
DENSE = '.dense'  # how the name of the uncompressed algorithm ends


def task_of(run: Run) -> str:
    """The model and the dataset that a run trains: only runs of one task can be compared."""
    parts = []
    for node in ('model', 'dataset'):
        function = run.settings.get(f'configs.{node}', '').rpartition('.')[2]
        prefix = f'configs.{node}.'
        settings = [
            f'{name.removeprefix(prefix)}={value}'
            for name, value in run.settings.items()
            if name.startswith(prefix) and name.removeprefix(prefix) not in NOT_OF_A_TASK
        ]
        parts.append(f'{function} ({", ".join(settings)})' if settings else function)
    model, dataset = parts
    return f'{model} on {dataset}' if model and dataset else 'unknown task'


def metric_of(run: Run) -> str | None:
    """The number that says how good a model is: that of the configuration if it was measured."""
    configured = run.facts.get('metric') or run.settings.get('configs.train.metric', '').strip("'")
    if configured in run.columns:
        return str(configured)
    return next((name for name in run.columns if name.startswith('acc/')), None)


def better_of(run: Run) -> str | None:
    """Whether 'higher' or 'lower' values of ``metric_of`` are better, as the run's meter says; None
    where it is not known."""
    same = run.facts.get('metric') == metric_of(run)
    return run.facts.get('better') if same else None


def is_dense(run: Run) -> bool:
    """Whether a run sends every gradient uncompressed, in every step."""
    compression = run.settings.get('configs.train.compression', '')
    every = run.settings.get('configs.train.averaging', 'EveryStep')
    return compression.endswith(DENSE) and every.endswith('EveryStep') and not run.is_server


def labels(runs: Sequence[Run]) -> list[str]:
    """Short names: without what the names of all runs of a task begin with; each once."""
    short = [label(run.name) for run in runs]
    return [
        run.name if short.count(text) > 1 else text for run, text in zip(runs, short, strict=True)
    ]


def label(name: str) -> str:
    """'digits.cnn+dgc.wm5,fp16.np2' → 'dgc.wm5,fp16'; other names stay."""
    found = re.fullmatch(r'[^+@]+\+(.+)\.np\d+(~\d+)?', name)
    return f'{found[1]}{found[2] or ""}' if found else name


def summary(run: Run) -> dict[str, Any]:
    """The numbers of a run that tables show; None for what is not known.

    best and last are of ``metric_of``. wait: fraction of the training time in which the loop waits
    for gradients; not of simulated runs, in which one process runs all workers in turn. Bytes are
    those that one worker sends.
    """
    columns, name = run.columns, metric_of(run)
    values = [value for value in columns.get(name or '', []) if value is not None]
    train, wait = total(columns.get('seconds/train')), total(columns.get('seconds/wait'))
    is_timed = not run.is_server and not run.is_simulated
    sent, dense = last(columns.get('total/bytes')), total(columns.get('bytes/dense'))
    if dense and run.is_server:
        dense /= 2 * (run.workers or 1)  # it counts both directions, of all workers
    return {
        'metric': name,
        'better': better_of(run),
        'best': (min if better_of(run) == 'lower' else max)(values, default=None),
        'last': values[-1] if values else None,
        'epochs': run.epochs,
        'planned': run.planned_epochs(),
        'workers': run.workers,
        'loss': last(columns.get('loss/train')),
        'seconds': last(columns.get('total/seconds')),
        'bytes': sent,
        'dense_bytes': dense,
        'fewer': dense / sent if dense and sent else None,
        'density': last(columns.get('ratio')),
        'wait': wait / train if train and wait is not None and is_timed else None,
        'ms_per_step': milliseconds(columns) if is_timed else None,
        'staleness': mean(columns.get('staleness/mean')),
    }


def milliseconds(columns: dict[str, Column]) -> float | None:
    """Mean time of a step: the loop computes or waits. Without saving and evaluation."""
    compute, wait = mean(columns.get('step/compute')), mean(columns.get('step/wait'))
    return None if compute is None or wait is None else 1e3 * (compute + wait)


def total(column: Column | None) -> float | None:
    """The sum; None where nothing was measured."""
    values = [value for value in column or [] if value is not None]
    return sum(values) if values else None


def mean(column: Column | None) -> float | None:
    """The mean; None where nothing was measured."""
    values = [value for value in column or [] if value is not None]
    return sum(values) / len(values) if values else None


def last(column: Column | None) -> float | None:
    """The last number; None where nothing was measured."""
    return next((value for value in reversed(column or []) if value is not None), None)
