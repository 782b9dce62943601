"""Training one row with one seed: a run of train.py, which goes on where it was interrupted."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.parity.rows import Row
from bench.parity.workloads import INDICES, Workload
from tools.harness.launch import ROOT, end, environment
from utils.config.conflicts import COMPOSITION
from utils.lines import metrics_lines
from utils.naming import UNNAMED

AVERAGING = 'configs.train.averaging.'  # as COMPOSITION, what only some rows have
OF_DENSITY = (f'{COMPOSITION}compress_ratio', f'{COMPOSITION}warmup_')
FIRST_SEED = 42  # that of train.py
# What a line has of each epoch, by name in metrics.jsonl.
OF_EPOCHS = ('steps', 'bytes/sent', 'bytes/received', 'bytes/dense', 'path/messages', 'path/bytes')
MINUTES = 5  # between two checkpoints within an epoch
POLL = 0.2  # seconds
PR_SET_PDEATHSIG = 1  # of prctl(2)
CPU = 'cpu'
SIMULATED, TORCHRUN = 'simulated', 'torchrun'

Result = dict[str, Any]  # a line of the results: what was asked, and what it came to


@dataclass(frozen=True)
class Run:
    """What to train.

    Attributes:
        workload: Its name.
        row: Its name.
        seed: Of weights and data.
        workers: Number of workers.
        configs: Config files, in order.
        settings: By name, as texts of the command line; without those that do not change what is
            trained.
        others: Those settings.
        engine: 'simulated', or 'torchrun' for one process for each worker.
        has_server: Whether one process more serves; it always has processes.
        device: 'cpu', or 'gpu' to train on GPUs.
    """

    workload: str
    row: str
    seed: int
    workers: int
    configs: tuple[str, ...]
    settings: Mapping[str, str]
    others: Mapping[str, str]
    engine: str
    has_server: bool
    device: str

    @property
    def asked(self) -> Result:
        """What identifies a result, as JSON holds it."""
        named = ('workload', 'row', 'seed', 'workers', 'settings')
        return {**{name: asdict(self)[name] for name in named}, 'configs': list(self.configs)}

    @property
    def name(self) -> str:
        """The name of the run's folder, another one for other settings and on another device."""
        digest = hashlib.sha256(json.dumps(self.asked, sort_keys=True).encode()).hexdigest()[:8]
        suffix = '' if self.device == CPU else f'.{self.device}'
        return f'{self.workload}.{self.row}.s{self.seed}.{digest}{suffix}'

    def command(self, runs: Path) -> list[str]:
        """The command line, whose run goes on if it was begun before."""
        words = ['train.py', '--configs', *self.configs, '--devices', self.device]
        words += ['--resume', 'auto', '--runs', str(runs), '--name', self.name]
        settings = {**self.settings, **self.others, 'configs.seed': str(self.seed)}
        processes = self.workers + self.has_server
        if self.has_server or self.engine == TORCHRUN:
            start = ['-m', 'torch.distributed.run', '--standalone']
            words = [*start, '--nproc-per-node', str(processes), *words]
        else:
            simulated = {'name': SIMULATED, 'size': str(self.workers)}
            settings |= {f'configs.engine.{name}': value for name, value in simulated.items()}
        if not self.has_server:  # a server journals every update
            settings['configs.checkpoint.every_minutes'] = str(MINUTES)
        return [sys.executable, *words, *(f'--{name}={value}' for name, value in settings.items())]


def planned(
    name: str,
    workload: Workload,
    row: Row,
    seed: int,
    workers: int,
    engine: str,
    device: str,
    data: Path,
    overrides: Mapping[str, str],
) -> Run:
    """Return a row's run.

    Args:
        name: Of the workload.
        workload: What is trained.
        row: The algorithm.
        seed: Counted from 0.
        workers, engine, device: See ``Run``.
        data: Stands for '{data}' in settings.
        overrides: Settings of the command line, by name; see ``taken``.
    """
    optimizer = () if row.has_own_rule else workload.optimizer
    given = {
        **workload.settings,
        **(workload.compressed if row.compresses else {}),
        **(workload.local if row.is_local else {}),
        **(workload.own_rule if row.has_own_rule else workload.optimizer_settings),
        **row.settings,
        **workload.rows.get(row.name, {}),
    }
    if not row.has_indices:
        given.pop(INDICES, None)
    texts = {f'configs.{key}': str(value) for key, value in given.items()}
    places = [key for key, text in texts.items() if '{data}' in text]
    texts = {key: text.replace('{data}', str(data)) for key, text in texts.items()}
    dense = () if row.compresses or row.is_local or row.has_server else workload.dense
    stack = *workload.configs, *row.configs, *optimizer, *workload.after, *row.after, *dense
    configs = tuple(dict.fromkeys(stack))
    having = {f'configs.{key}': str(value) for key, value in workload.having.items()}
    texts |= taken(row, configs, {**having, **overrides})
    others = {k: value for k, value in texts.items() if k in places or k.startswith(UNNAMED)}
    settings = {key: value for key, value in texts.items() if key not in others}
    return Run(
        *(name, row.name, FIRST_SEED + seed, workers, configs, settings, others),
        *(engine, row.has_server, device),
    )


def taken(
    row: Row, configs: tuple[str, ...], overrides: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the settings of a command line, or of all rows that have them, that go to a row.

    Those of the composition and of local steps go to rows that have a setting of that name, those
    of a density to rows that have one, all others to every row.

    Args:
        row: Of the table.
        configs: Its config files, with those of the workload.
        overrides: Settings by name.
    """
    for name, text in overrides.items():
        if name.startswith(OF_DENSITY) and not row.compresses:
            continue  # asgd, which sends all elements, has settings of these names
        if not name.startswith((COMPOSITION, AVERAGING)) or name in settings_of(configs):
            yield name, text


@cache
def settings_of(configs: tuple[str, ...]) -> frozenset[str]:
    """Return the names of all settings that a stack of config files has."""
    from utils.cli import DECLARATIONS  # these import torch
    from utils.config import names_of_settings

    return names_of_settings([ROOT / each for each in configs], DECLARATIONS)


def train(runs: Sequence[Run], folder: Path, jobs: int) -> Generator[tuple[Run, int]]:
    """Train several runs; yield each with its exit status when it has ended.

    Args:
        runs: In the order in which they begin.
        folder: Where run folders are made, with a log beside each.
        jobs: How many are trained at the same time.
    """
    waiting = deque(runs)
    running: dict[str, tuple[Run, subprocess.Popen[bytes]]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.popleft()
                running[run.name] = run, start(run, folder)
            for name, (run, process) in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    yield run, process.returncode
            time.sleep(POLL)
    finally:  # SIGTERM makes train.py save a checkpoint
        for _, process in running.values():
            end(process)


def start(run: Run, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run, whose output goes to a file beside its folder."""
    with log_file(run, folder).open('wb') as file:
        return subprocess.Popen(
            run.command(folder),
            cwd=ROOT,
            env=os.environ | environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent if sys.platform == 'linux' else None,
            start_new_session=True,
        )


def log_file(run: Run, folder: Path) -> Path:
    """The file with a run's output."""
    return folder / f'{run.name}.log'


def end_with_parent() -> None:
    """Have the kernel end this process when its parent is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def failure(run: Run, folder: Path, status: int) -> str:
    """What went wrong in a run: the last line that train.py printed about it."""
    lines = log_file(run, folder).read_text(errors='replace').splitlines()
    told = [line.strip() for line in lines if 'train.py: ' in line]
    return told[-1] if told else f'ended with status {status}: see {log_file(run, folder)}'


def result(run: Run, folder: Path, metric: str) -> Result:
    """Return the line of a complete run. Bytes and densities are those of the last epoch.

    Args:
        run: What was trained.
        folder: Of all runs.
        metric: The name of the compared meter.

    Raises:
        ValueError: Where the run is not complete, or was begun by an earlier version.
    """
    own = folder / run.name
    facts = json.loads((own / 'run.json').read_text())
    epochs = [numbers for _, numbers in metrics_lines(own / 'metrics.jsonl')]
    if len(epochs) < facts['epochs'] or metric not in epochs[-1]:
        raise ValueError(f'{own} has {len(epochs)} of {facts["epochs"]} epochs with {metric}')
    needed = () if run.has_server else OF_EPOCHS
    if missing := [name for name in needed if any(name not in epoch for epoch in epochs)]:
        raise ValueError(
            f'{own} was begun by an earlier version: metrics.jsonl has no {", ".join(missing)}; '
            'remove the folder to train anew'
        )
    last = epochs[-1]
    sent, received = last['bytes/sent'], last['bytes/received']
    steps = last.get('steps')
    if run.has_server:  # whose file counts what all workers send, and what it answers
        sent, received = received, sent
        steps = facts['updates_per_epoch'] * facts.get('steps_per_update', 1)
    return {
        **run.asked,
        'engine': facts['engine'],
        'device': run.device,
        'epochs': len(epochs),
        'steps_per_epoch': steps,
        'metric': metric,
        'value': last[metric],
        'curve': [epoch[metric] for epoch in epochs],
        'loss': last.get('loss/train'),
        'bytes_per_step': round(sent / steps),
        'received_per_step': round(received / steps),
        'density': last['ratio'],
        'seconds': round(sum(epoch.get('seconds/train', 0.0) for epoch in epochs)),
        **({} if run.has_server else traffic(epochs, facts)),
    }


def traffic(epochs: Sequence[Mapping[str, float]], facts: Mapping[str, Any]) -> Result:
    """Return what was sent in each epoch of synchronous training, and how.

    Args:
        epochs: The lines of metrics.jsonl.
        facts: Of run.json.
    """
    first = epochs[0]
    tokens = first['speed/tokens'] / first['speed/samples'] if 'speed/tokens' in first else None
    predicted = facts['predicted']
    return {
        'of_epochs': {name: [epoch[name] for epoch in epochs] for name in OF_EPOCHS},
        'samples_per_step': facts['samples_per_step'],
        'tokens_per_sample': None if tokens is None else round(tokens),
        'parameters': facts['parameters'],
        'steps_per_exchange': predicted['steps_per_exchange'],
        'fragments': predicted['fragments'],
        'steps_hidden': predicted['steps_hidden'],
    }


def discard_checkpoints(run: Run, folder: Path) -> None:
    """Remove the checkpoints of a complete run; its curves and numbers stay."""
    shutil.rmtree(folder / run.name / 'checkpoints', ignore_errors=True)
