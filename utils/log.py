"""The files of a run: TensorBoard curves, metrics.jsonl, and its environment."""

from __future__ import annotations

import json
import logging
import platform
import socket
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from torch import Tensor

from dgc.engines import detect
from dgc.handshake import gather_text
from dgc.selection import LayerError
from utils.agree import agreed
from utils.build import Parts
from utils.checkpoint import Position
from utils.config import Config
from utils.counting import Counting, EqualSteps, Made
from utils.curves import Curves
from utils.facts import predicted_bytes, synchronous_facts, write_facts
from utils.files import append_line, replacing, saving
from utils.folder import check_writable, prepare_folder, writing
from utils.layers import LayerFile
from utils.lines import metrics_lines
from utils.meters import QUALITY
from utils.naming import UNNAMED

EMPTY: Mapping[str, list[float]] = {}
NO_SETTINGS: Mapping[str, Any] = {}

log = logging.getLogger(__name__)


class Log(Protocol):
    """Receives the measurements of a training loop."""

    def place(self, step: int) -> int:
        """Where the curves have step ``step``. To be asked while it is made, or about any step
        where all have as many samples."""

    def point(self, name: str, value: float, place: int) -> None:
        """Record a number of the step at ``place``."""

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        """Record a histogram of values of step ``step``."""

    def layers(self, errors: Sequence[LayerError], step: int) -> None:
        """Record what selections lost of each layer in step ``step``."""

    def trace(self, content: str, table: str) -> None:
        """Record a Chrome trace, as JSON, and its table."""

    def epoch(
        self, epoch: int, numbers: Mapping[str, float], ranks: Mapping[str, list[float]] = EMPTY
    ) -> None:
        """Record the numbers of an epoch, and those of each rank."""


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
            kept = [line for line, numbers in metrics_lines(path) if numbers['epoch'] < resumed_at]
            with replacing(path) as file:
                file.write(''.join(f'{line}\n' for line in kept).encode())

    def append(
        self, numbers: Mapping[str, float], ranks: Mapping[str, list[float]] = EMPTY
    ) -> None:
        """Write a line, and print its losses and other meters.

        Args:
            numbers: Of the epoch.
            ranks: Of each rank, a list by rank; they are under 'ranks' in the line.
        """
        with saving(self._path):
            line = {**numbers, **({'ranks': dict(ranks)} if ranks else {})}
            append_line(self._path, json.dumps(line))
        shown = {k: v for k, v in numbers.items() if k.startswith(QUALITY)}
        text = ', '.join(f'{k} {v:.4g}' for k, v in shown.items())
        print(f'epoch {numbers["epoch"]}: {text}', flush=True)

    def read(self) -> list[dict[str, float]]:
        """The numbers of all epochs so far."""
        return [numbers for _, numbers in metrics_lines(self._path)]


class RunLog:
    """The curves and metrics of one run. Only rank 0 writes; on others every call does nothing.

    Args:
        folder: The run folder.
        parts: What this rank trains with.
        resumed_at: The position from which on training goes on, with the steps whose losses are
            in the curves; the files lose what is later. None for a new run.
        held: The lock on the folder, which is released with the log.
        axis: What the curves are drawn against: 'samples' or 'steps'.
        settings: By which TensorBoard compares runs.
        counting: Counts samples; None where every step has as many.
    """

    def __init__(
        self,
        folder: Path,
        parts: Parts,
        resumed_at: Position | None = None,
        held: IO[str] | None = None,
        axis: str = 'samples',
        settings: Mapping[str, Any] = NO_SETTINGS,
        counting: Counting | None = None,
    ) -> None:
        self._held, self._folder, self._axis = held, folder, axis
        self._writes = parts.engine.rank == 0
        self._loader = parts.loaders['train']
        self._counting = counting or EqualSteps(parts.samples_per_step)
        if not self._writes:
            return
        epochs = None if resumed_at is None else resumed_at.epochs
        self._metrics = Metrics(folder / 'metrics.jsonl', epochs)
        self._layers = LayerFile(folder)
        purge, suffix = None, ''
        if resumed_at is not None:
            steps = resumed_at.epochs * len(self._loader) + resumed_at.step
            purge = self._on_axis(self._counting.made(steps)) + 1
            # Event files are named by the second; the suffix keeps a resumed run from reusing one.
            suffix = f'.e{resumed_at.epochs:04d}.s{resumed_at.step:06d}'
        self._curves = Curves(folder, purge, suffix)
        self._curves.begin(settings)

    def _on_axis(self, made: Made) -> int:
        """The samples of all workers so far, or the steps."""
        return made.samples if self._axis == 'samples' else made.steps

    def place(self, step: int) -> int:
        """Behind the step. See Log."""
        return self._on_axis(self._counting.made(step + 1))

    def point(self, name: str, value: float, place: int) -> None:
        """Add a point to a TensorBoard curve."""
        if self._writes:
            self._curves.add(name, value, place)

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        """Add a histogram at a step."""
        if self._writes:
            self._curves.histogram(name, values, self.place(step))

    def layers(self, errors: Sequence[LayerError], step: int) -> None:
        """Add a line to layers.jsonl, and a point to the curves of each layer."""
        if not self._writes:
            return
        self._layers.append({each.layer: numbers_of(each) for each in errors}, step)
        place = self.place(step)
        for each in errors:
            self.point(f'topk_over_randomk/{each.layer}', each.topk, place)
            if each.selected is not None:
                self.point(f'compressor_over_randomk/{each.layer}', each.selected, place)

    def trace(self, content: str, table: str) -> None:
        """Write trace.json and trace.txt."""
        if self._writes:
            for name, text in (('trace.json', content), ('trace.txt', f'{table}\n')):
                with replacing(self._folder / name) as file:
                    file.write(text.encode())
            print(f'{self._folder / "trace.txt"}; trace.json is for ui.perfetto.dev', flush=True)

    def epoch(
        self,
        epoch: int,
        numbers: Mapping[str, float],
        ranks: Mapping[str, list[float]] = EMPTY,
        step: int | None = None,
    ) -> None:
        """Write a line of metrics.jsonl, and add a point to each curve.

        Args:
            epoch, numbers, ranks: See Log.
            step: Steps of the epoch; None for all that it has.
        """
        if not self._writes:
            return
        of_epoch = len(self._loader) if step is None else step
        made = self._counting.made(epoch * len(self._loader) + of_epoch)
        for name, value in numbers.items():
            if name != 'loss/train':  # which has a point for each step
                self._curves.add(name, value, self._on_axis(made))
        self._curves.flush()
        self._metrics.append({'epoch': epoch, 'samples': made.samples, **numbers}, ranks)

    def flush(self) -> None:
        """Write what is buffered: a checkpoint has no points of the curves."""
        if self._writes:
            self._curves.flush()

    def close(self) -> None:
        """Write what is buffered and release the folder."""
        if self._writes:
            self._curves.end()
            self._curves.close()
        self.release()

    def release(self) -> None:
        """Let another run write the folder; also after an error, when nothing can be written."""
        if self._held is not None:
            self._held.close()


def numbers_of(error: LayerError) -> dict[str, Any]:
    """What layers.jsonl has of a layer."""
    return {
        'elements': error.numel,
        'k': error.k,
        'random': error.random,
        'topk': error.topk,
        'selected': error.selected,
    }


def start_log(folder: Path, parts: Parts, configs: Config, resumed_at: Position | None) -> RunLog:
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
    with agreed(engine, parts.device):
        plan = parts.optimizer.plan
        if engine.rank == 0:
            with writing(folder):
                plan.save(folder / 'plan.json')
                (folder / 'plan.txt').write_text(f'{plan.summary()}\n{plan.table()}\n')
            write_facts(folder, configs, synchronous_facts(configs, parts))
        settings = {**hparams_of(configs), 'workers': engine.size}
        run_log = RunLog(folder, parts, resumed_at, held, configs.log.axis, settings)
    if engine.rank == 0:
        print(f'{folder}\n{cost(parts)}', flush=True)
        if plan.predicted:
            print(plan.summary(), flush=True)
    return run_log


def hparams_of(configs: Config) -> dict[str, Any]:
    """The settings by which TensorBoard compares runs: those that change what is trained."""
    return {
        name.removeprefix('configs.'): value
        for name, value in configs.flat().items()
        if not name.startswith(UNNAMED)
    }


def cost(parts: Parts) -> str:
    """One line: the memory and the messages of compression on each worker."""
    buckets, numel = parts.optimizer.buckets, sum(b.numel for b in parts.optimizer.buckets)
    memory = sum(flat.nbytes for bucket in buckets for flat in bucket.buffers.values())
    sent, uncompressed = predicted_bytes(parts)
    return (
        f'{numel:,} parameters in {len(buckets)} buckets; {memory / 1e6:,.1f} MB of memory for '
        f'compression; a worker sends {sent:,} bytes per exchange after the warm-up, '
        f'{uncompressed:,} uncompressed'
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
