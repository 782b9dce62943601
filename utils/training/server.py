"""The server's process: it serves, evaluates its model, and writes the run folder."""

from __future__ import annotations

import copy
import math
import signal
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from dgc.engines import LocalEngine
from dgc.parameter_server import Address, Asynchronous, Budget, Entry, ServerSettings
from dgc.parameter_server.model import FloatBuffers
from dgc.parameter_server.sockets import Service, derive_key
from utils.build import (
    Evaluated,
    build_evaluation_loaders,
    build_optimizer,
    build_train_loader,
    check_meters,
    check_metric,
    common,
    lengths,
    ranking,
)
from utils.checkpoint import CheckpointError, Checkpoints, Position
from utils.checks import build_composition
from utils.facts import write_facts
from utils.folder import check_writable, prepare_folder
from utils.log import environment, hparams_of
from utils.network import prepared
from utils.progress import summed_lines
from utils.seeding import seed_everything
from utils.training import generations
from utils.training.disk import Disk
from utils.training.experiment import Experiment
from utils.training.generations import Generations
from utils.training.pushing import pushing_of
from utils.training.server_log import ServerLog, closing_table
from utils.training.stopping import SIGNALS

MAX_PENDING_EVALUATIONS = 2  # each holds a copy of the model
JOURNAL_BYTES = 2**28  # after which a checkpoint is written, or after so many models' bytes:
JOURNAL_MODELS = 16


class ServerProcess:
    """A server, from binding its address to its last checkpoint.

    Args:
        experiment: The experiment to serve.
        settings: ``configs.server``.
        datasets: By split.
        workers: How many may train at the same time.
        address: Where to listen.
        secret: What the workers have too; None for no key.

    Attributes:
        address: Where it listens, with the port that was chosen.

    Raises:
        ValueError: For settings that a part refuses.
        CheckpointError: If ``--resume`` names no run of a server.
        ServerError: If it cannot listen at ``address``.
    """

    def __init__(
        self,
        experiment: Experiment,
        settings: ServerSettings,
        datasets: dict[str, Dataset],
        workers: int,
        address: Address,
        secret: bytes | None,
    ) -> None:
        configs = experiment.configs
        self._experiment, self._settings, self._workers = experiment, settings, workers
        check_metric(configs, datasets)
        seed_everything(configs.seed)
        self._model = prepared(configs.model.build(), configs)
        loader, _ = build_train_loader(configs, datasets, 0, workers, torch.device('cpu'))
        pushing = pushing_of(configs)
        updates_per_epoch = Fraction(len(loader) * workers, pushing.steps_per_push)
        self._facts = {
            'workers': workers,
            'engine': 'parameter server',
            'samples': lengths(datasets),
            'updates_per_epoch': plain(updates_per_epoch),
            'steps_per_update': pushing.steps_per_push,
            'samples_per_update': (loader.batch_size or 1) * pushing.steps_per_push,
        }
        self._disk = Disk()
        self._log = ServerLog(updates_per_epoch, self._end_epoch, self._disk, self._journal)
        updates = math.ceil(configs.train.num_epochs * updates_per_epoch)
        self._server = pushing.server(
            partial(build_optimizer, configs, self._model, workers=1),
            self._model,
            build_composition(configs, Asynchronous),
            Budget(workers, len(loader), updates),
            common(configs, datasets),
            self._log,
            settings.timeout,
            settings.max_norm_ratio,
        )
        self._folder = (experiment.earlier if experiment.resumes else experiment.folder)(workers)
        keep = configs.checkpoint.keep_epochs
        self._checkpoints = Checkpoints(self._folder / 'checkpoints', keep_epochs=keep)
        self._source = self._find_source() if experiment.resumes else None
        self._good: int | None = None  # the checkpoint that it was restored from, in this folder
        self._seconds = self._load_checkpoint()
        self._evaluator = Evaluator(experiment, datasets, self._model)
        check_meters(configs, self._evaluator.parts)
        self._pending: list[Future[None]] = []
        self._last_save = time.monotonic()
        self._stopped = False
        key = derive_key(secret) if secret else None
        self._service = Service(self._server, address, key, settings.patience, settings.connections)
        self.address = self._service.address

    def run(self) -> None:
        """Serve until all updates have been made and all workers have left, or until a signal."""
        for number in SIGNALS:
            signal.signal(number, self._stop)
        self._open_folder()
        with self._service as service:
            service.run(self._between_messages)
        self._save()
        self._generations.close()
        self._log.close()
        self._claim.close()
        if self._server.finished:
            configs = self._experiment.configs
            metric = configs.train.metric
            epochs = summed_lines(self._log.metrics.read(), metric)
            table = closing_table(epochs, self._folder, metric, ranking(configs))
            print(table, flush=True)

    def _find_source(self) -> Path | None:
        """The folder with the checkpoints to go on from; None to begin from the start."""
        source = self._experiment.source(self._folder)
        folder = source if source.name == 'checkpoints' else source / 'checkpoints'
        if generations.exists(folder):
            return folder
        if self._experiment.is_auto:
            return None
        raise CheckpointError(f'there is no {folder}/server.*.pth: --resume RUN names the run of a '
                              'server')  # fmt: skip

    def _load_checkpoint(self) -> float:
        """Restore the server; returns the seconds that the run has taken so far."""
        if self._source is None:
            return 0.0
        state, version = generations.newest(self._source)
        self._server.load_state_dict(state)
        if self._source == self._checkpoints.folder:
            self._good = version
        return float(state['seconds'])

    def _replay(self) -> None:
        """Apply the updates that were acknowledged after the checkpoint."""
        begin = self._server.version
        for entry in generations.journaled(self._source, begin) if self._source else ():
            self._server.replay(entry)
        if self._server.version > begin:
            print(f'{self._server.version - begin} updates after {begin} are in the journal',
                  flush=True)  # fmt: skip

    def _open_folder(self) -> None:
        """Prepare the run folder, with a first checkpoint, and print what is served."""
        continues = self._experiment.continues(self._folder)
        about = environment('parameter server', [socket.gethostname()], self._workers)
        configs = self._experiment.configs
        self._claim = prepare_folder(self._folder, configs, about, moves_aside=not continues)
        numel = sum(self._server.model.numels)
        write_facts(self._folder, configs, {**self._facts, 'parameters': numel})
        version = self._server.version if continues else None
        settings = {**hparams_of(configs), 'workers': self._workers}
        self._log.open(self._folder, numel, version, self._seconds, settings)
        check_writable(self._checkpoints.folder, 0)
        mode = self._settings.journal
        self._generations = Generations(self._checkpoints.folder, mode, self._disk, self._good)
        self._replay()
        self._save()
        memory = 4 * numel * self._server.models_held
        print(
            f'{self._folder}\n{numel:,} parameters, at most {memory / 1e6:,.1f} MB of memory for '
            f'them; {self._workers} workers make {self._server.budget.updates:,} updates\n'
            f'serving at {self.address} from update {self._server.version}',
            flush=True,
        )

    def _stop(self, number: int, frame: Any) -> None:
        self._stopped = True

    def _between_messages(self) -> bool:
        """Save from time to time and re-raise errors of evaluations; returns whether to go on."""
        seconds = time.monotonic() - self._last_save
        model_bytes = 4 * sum(self._server.model.numels)
        most = max(JOURNAL_BYTES, JOURNAL_MODELS * model_bytes)
        is_long = self._generations.journal_bytes > most
        if is_long or seconds > self._settings.checkpoint_seconds:
            state, manifest = self._state()
            with self._disk.tolerated(self._checkpoints.folder):
                self._generations.save(state, manifest)
        if any(pending.done() for pending in self._pending):
            self._pending.pop(0).result()
        return not self._stopped

    def _save(self) -> None:
        """Write a checkpoint. Raises WriteError."""
        self._generations.save(*self._state())

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a checkpoint holds and its manifest, after all earlier epochs are in metrics.jsonl:
        a resumed run does not evaluate them again."""
        while self._pending:
            self._pending.pop(0).result()
        self._log.flush()
        state = {**self._server.state_dict(), 'seconds': self._log.seconds}
        self._last_save = time.monotonic()
        return state, {'run': self._folder.name, 'updates': self._server.version}

    def _journal(self, entry: Entry) -> None:
        self._generations.append(entry)

    def _end_epoch(self, epoch: int, numbers: dict[str, float]) -> None:
        """Evaluate a copy of the model on another thread, while workers train on.

        Waits for an earlier evaluation where two are pending.
        """
        while len(self._pending) >= MAX_PENDING_EVALUATIONS:
            self._pending.pop(0).result()
        state = self._server.state_dict()
        numbers['workers'] = len(self._server.workers)

        def finish() -> None:
            numbers.update(self._evaluator.evaluate(state))
            name = self._experiment.configs.train.metric
            before = [line[name] for line in self._log.metrics.read() if name in line]
            which = ranking(self._experiment.configs)
            earlier = which.best(before) if before else None
            improved = name is None or which.improves(numbers[name], earlier)
            self._log.write(epoch, numbers)
            model = self._evaluator.model.state_dict()
            best = None if name is None else which.best([numbers[name], *before])
            position = Position(epoch + 1)
            with self._disk.tolerated(self._checkpoints.folder):
                self._checkpoints.save(position, {'model': model, 'epoch': epoch, 'best': best})
                self._checkpoints.finish(position, epoch if improved else None)

        self._pending.append(self._evaluator.submit(finish))


def plain(number: Fraction) -> int | float:
    """A number as JSON has it: whole where it is."""
    return int(number) if number.denominator == 1 else float(number)


class Evaluator:
    """Evaluates copies of the model one after another, on a thread of its own."""

    def __init__(
        self, experiment: Experiment, datasets: dict[str, Dataset], model: nn.Module
    ) -> None:
        configs, self._experiment = experiment.configs, experiment
        self.model = copy.deepcopy(model).to(experiment.device)
        loaders = build_evaluation_loaders(configs, datasets, 0, 1, experiment.device)
        parts = LocalEngine(), experiment.device, self.model, loaders
        self.parts = Evaluated(*parts, precision=configs.train.precision)
        self._statistics = FloatBuffers(self.model.buffers())
        self._pool = ThreadPoolExecutor(1)
        self._threads = torch.get_num_threads()
        self.submit = self._pool.submit

    def evaluate(self, state: dict[str, Any]) -> dict[str, float]:
        """Load ``Server.state_dict()`` into ``model`` and return its meters."""
        torch.set_num_threads(self._threads)  # a setting of each thread
        self.model.load_state_dict(state['parameters'], strict=False)
        self._statistics.write(state['statistics'])
        return self._experiment.evaluate(self.parts, self._experiment.configs)
