"""The files of a run: TensorBoard curves, metrics.jsonl, and its environment."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Protocol

import torch
from tensorboardX import SummaryWriter

from dgc.composition import Composition
from dgc.engines import detect
from dgc.handshake import gather_text
from utils.agree import agreed
from utils.build import Parts
from utils.config import Config
from utils.folder import check_writable, prepare_folder


class Log(Protocol):
    """Receives the measurements of a training loop."""

    def step(self, name: str, value: float, step: int) -> None:
        """Record a number of step ``step``."""

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Record the numbers of an epoch."""


class Metrics:
    """metrics.jsonl: one line of numbers per epoch.

    Args:
        path: The file.
        resumed_at: The first epoch that is trained now, from which on lines are removed; None for
            a new run.
    """

    def __init__(self, path: Path, resumed_at: int | None = None) -> None:
        self._path = path
        if resumed_at is not None and path.is_file():
            lines = path.read_text().splitlines(keepends=True)
            complete = [line for line in lines if line.endswith('\n')]  # a kill may cut the last
            kept = [line for line in complete if json.loads(line)['epoch'] < resumed_at]
            path.write_text(''.join(kept))

    def append(self, numbers: Mapping[str, float]) -> None:
        """Write a line, and print its losses and accuracies."""
        with self._path.open('a') as file:
            file.write(json.dumps(dict(numbers)) + '\n')
        shown = {k: v for k, v in numbers.items() if k.startswith(('loss/', 'acc/'))}
        text = ', '.join(f'{k} {v:.4g}' for k, v in shown.items())
        print(f'epoch {numbers["epoch"]}: {text}', flush=True)

    def read(self) -> list[dict[str, float]]:
        """The numbers of all epochs so far."""
        if not self._path.is_file():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]


class RunLog:
    """The curves and metrics of one run. Only rank 0 writes; on others every call does nothing.

    Args:
        folder: The run folder.
        parts: What this rank trains with.
        resumed_at: The first epoch that is trained now; the files lose what is later. None for a
            new run.
        held: The lock on the folder, which is released with the log.
    """

    def __init__(
        self,
        folder: Path,
        parts: Parts,
        resumed_at: int | None = None,
        held: IO[str] | None = None,
    ) -> None:
        self._held = held
        self._writes = parts.engine.rank == 0
        self._samples_per_step = parts.samples_per_step
        self._samples_per_epoch = parts.samples_per_step * len(parts.loaders['train'])
        if not self._writes:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics = Metrics(folder / 'metrics.jsonl', resumed_at)
        purge = None if resumed_at is None else resumed_at * self._samples_per_epoch + 1
        # Event files are named by the second; the suffix keeps a resumed run from reusing a name.
        suffix = '' if resumed_at is None else f'.e{resumed_at:04d}'
        self._writer = SummaryWriter(str(folder), purge_step=purge, filename_suffix=suffix)

    def step(self, name: str, value: float, step: int) -> None:
        """Add a point to a TensorBoard curve, against the samples of all workers so far."""
        if self._writes:
            self._writer.add_scalar(name, value, (step + 1) * self._samples_per_step)

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Write a line of metrics.jsonl, and add a point to each curve."""
        if not self._writes:
            return
        samples = (epoch + 1) * self._samples_per_epoch
        for name, value in numbers.items():
            if name != 'loss/train':  # which has a point for each step
                self._writer.add_scalar(name, value, samples)
        self._writer.flush()
        self._metrics.append({'epoch': epoch, 'samples': samples, **numbers})

    def close(self) -> None:
        """Write what is buffered and release the folder."""
        if self._writes:
            self._writer.close()
        if self._held is not None:
            self._held.close()


def start_log(folder: Path, parts: Parts, configs: Config, resumed_at: int | None) -> RunLog:
    """Prepare the run folder and return its log. A collective.

    Args:
        folder: The run folder.
        parts: What this rank trains with.
        configs: The resolved configuration.
        resumed_at: See RunLog.

    Raises:
        Refused: On all ranks, if one of them cannot write there.
    """
    engine = parts.engine
    hosts = gather_text(engine, socket.gethostname(), parts.device, limit=256)
    held = None
    with agreed(engine, parts.device):
        if engine.rank == 0:
            about = environment(engine.name, hosts)
            held = prepare_folder(folder, configs, about, moves_aside=resumed_at is None)
    with agreed(engine, parts.device):  # on every machine, after rank 0 has renamed an old folder
        check_writable(folder, engine.rank)
    if engine.rank == 0:
        plan = parts.optimizer.plan
        plan.save(folder / 'plan.json')
        (folder / 'plan.txt').write_text(f'{plan.summary()}\n{plan.table()}\n')
        print(f'{folder}\n{cost(parts)}', flush=True)
        if plan.predicted:
            print(plan.summary(), flush=True)
    return RunLog(folder, parts, resumed_at, held)


def cost(parts: Parts) -> str:
    """One line: the memory and the messages of compression on each worker."""
    buckets, composition = parts.optimizer.buckets, parts.optimizer.composition
    assert isinstance(composition, Composition)  # a parameter server's workers log elsewhere
    volume = composition.volume
    numel, size = sum(bucket.numel for bucket in buckets), parts.engine.size
    memory = sum(4 * bucket.numel * len(bucket.buffers) for bucket in buckets)
    sent = sum(volume.bytes_sent(b.spec, b.spec.density, size) for b in buckets)
    uncompressed = sum(volume.bytes_sent(b.spec, None, size) for b in buckets)
    return (
        f'{numel:,} parameters in {len(buckets)} buckets; {memory / 1e6:,.1f} MB of memory for '
        f'compression; a worker sends {round(sent):,} bytes per exchange after the warm-up, '
        f'{round(uncompressed):,} uncompressed'
    )


def environment(engine: str, hosts: list[str], workers: int | None = None) -> str:
    """The content of environment.txt: versions, launcher, engine, hosts and git commit.

    Args:
        engine: Name of the engine.
        hosts: Host name of each rank.
        workers: Number of workers; None for that of ``hosts``.
    """
    lines = {
        'python': platform.python_version(),
        'torch': torch.__version__,
        'horovod': _horovod_version(),
        'platform': platform.platform(),
        'launcher': detect().name,
        'engine': engine,
        'workers': str(workers or len(hosts)),
        'threads of a worker': str(torch.get_num_threads()),
        'hosts': ' '.join(sorted(set(hosts))),
        'git commit': _git_commit(),
    }
    return ''.join(f'{name}: {value}\n' for name, value in lines.items())


def _horovod_version() -> str:
    try:
        return version('horovod')
    except PackageNotFoundError:
        return 'not installed'


def _git_commit() -> str:
    command = ['git', 'describe', '--always', '--dirty', '--abbrev=12']
    try:
        root = Path(__file__).parent
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    except FileNotFoundError:
        return 'unknown'
    return done.stdout.strip() or 'unknown'
