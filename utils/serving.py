"""The server's part of an experiment: it serves, evaluates its model, and leaves a run folder."""

from __future__ import annotations

import copy
import signal
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from dgc.engines import LocalEngine
from dgc.parameter_server import Address, Course, Key, Server, ServerSettings, Service
from dgc.parameter_server.flat import Statistics
from utils.build import (
    Evaluated,
    build_evaluation_loaders,
    build_optimizer,
    build_train_loader,
    check_metric,
    common,
    seed_everything,
)
from utils.checkpoint import CheckpointError, Checkpoints, load_whole, save_whole
from utils.experiment import Experiment
from utils.folder import check_writable, prepare_folder
from utils.log import environment
from utils.server_log import ServerLog, table

STATE = 'server.pth'  # in the folder of checkpoints: what a server goes on from


class Serving:
    """A server, from its first bind to its last checkpoint.

    workers: how many may train at once. Raises what the parts raise for settings that they refuse,
    CheckpointError where there is nothing to go on from, ServerError where it cannot listen.
    """

    def __init__(
        self,
        experiment: Experiment,
        settings: ServerSettings,
        datasets: dict[str, Dataset],
        workers: int,
        address: Address,
        key: Key | None,
    ) -> None:
        configs = experiment.configs
        self._experiment, self._settings, self._workers = experiment, settings, workers
        check_metric(configs, datasets)
        seed_everything(configs.seed)
        self._model = configs.model.build()
        loader, _ = build_train_loader(configs, datasets, 0, workers, torch.device('cpu'))
        self._epoch = len(loader) * workers  # updates
        self._log = ServerLog(self._epoch, self._end_epoch)
        self._server = Server(
            build_optimizer(configs, self._model, workers=1),
            self._model.named_parameters(),
            self._model.buffers(),
            configs.train.compression.build(),
            Course(workers, len(loader), configs.train.num_epochs * self._epoch),
            common(configs, datasets),
            self._log,
            settings.timeout,
        )
        self._folder = experiment.folder(workers)
        self._checkpoints = Checkpoints(self._folder / 'checkpoints')
        self._resume()
        self._evaluator = Evaluator(experiment, datasets, self._model)
        self._pending: list[Future[None]] = []
        self._saved = time.monotonic()
        self._stopped = False
        self._service = Service(self._server, address, key, settings.patience)
        self.address = self._service.address

    def run(self) -> None:
        """Serve until all updates have been made and every worker knows it, or until a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._open()
        with self._service as service:
            service.run(self._between)
        self._save()
        self._log.close()
        self._held.close()
        if self._server.finished:
            rows = self._log.metrics.read()
            told = table(rows, self._folder, self._experiment.configs.train.metric)
            print(told, flush=True)

    def _resume(self) -> None:
        self._seconds = 0.0
        if not self._experiment.resumes:
            return
        source = self._experiment.source(self._folder)
        folder = source if source.name == 'checkpoints' else source / 'checkpoints'
        path = folder / STATE
        if not path.is_file():
            raise CheckpointError(f'there is no {path}: --resume RUN names the run of a server')
        state = load_whole(path, 'start without --resume')
        self._server.load_state_dict(state)
        self._seconds = float(state['seconds'])

    def _open(self) -> None:
        """The run folder; a checkpoint from the first moment on."""
        goes_on = self._experiment.goes_on(self._folder)
        about = environment('parameter server', [socket.gethostname()], self._workers)
        configs = self._experiment.configs
        self._held = prepare_folder(self._folder, configs, about, moves_aside=not goes_on)
        numel = sum(self._server.numels)
        version = self._server.version if goes_on else None
        self._log.open(self._folder, numel, version, self._seconds)
        check_writable(self._checkpoints.folder, 0)
        self._save()
        kept = 4 * numel * (2 + 2 * self._workers)  # θ, scratch; a record and a reply for each
        print(
            f'{self._folder}\n{numel:,} parameters, at most {kept / 1e6:,.1f} MB of them here; '
            f'{self._workers} workers make {self._server.course.updates:,} updates\n'
            f'serving at {self.address.for_people} from update {self._server.version}',
            flush=True,
        )

    def _stop(self, number: int, frame: Any) -> None:
        self._stopped = True

    def _between(self) -> bool:
        """Whether to go on; saves now and then, and raises what an evaluation has raised."""
        if time.monotonic() - self._saved > self._settings.checkpoint_seconds:
            self._save()
        if any(pending.done() for pending in self._pending):
            self._pending.pop(0).result()
        return not self._stopped

    def _save(self) -> None:
        """A checkpoint, once all epochs before it are on file: a run that goes on lacks none."""
        while self._pending:
            self._pending.pop(0).result()
        self._log.flush()
        state = {**self._server.state_dict(), 'seconds': self._log.seconds}
        save_whole(state, self._checkpoints.folder / STATE)
        self._saved = time.monotonic()

    def _end_epoch(self, epoch: int, numbers: dict[str, float]) -> None:
        """Have the model of now evaluated while others train on, unless that lags behind."""
        while len(self._pending) > 1:
            self._pending.pop(0).result()
        state = self._server.state_dict()
        numbers['workers'] = len(self._server.membership)
        self._pending.append(
            self._evaluator.submit(lambda: self._finish_epoch(epoch, numbers, state))
        )

    def _finish_epoch(self, epoch: int, numbers: dict[str, float], state: dict[str, Any]) -> None:
        numbers.update(self._evaluator.evaluate(state))
        name = self._experiment.configs.train.metric
        before = [line[name] for line in self._log.metrics.read()]
        improved = not before or numbers[name] > max(before)
        self._log.write(epoch, numbers)
        model = self._evaluator.model.state_dict()
        best = max([numbers[name], *before])
        self._checkpoints.save(epoch, {'model': model, 'epoch': epoch, 'best': best})
        self._checkpoints.finish(epoch, improved)


class Evaluator:
    """Evaluates copies of the model on a thread of its own, one after another."""

    def __init__(
        self, experiment: Experiment, datasets: dict[str, Dataset], model: nn.Module
    ) -> None:
        configs, self._experiment = experiment.configs, experiment
        self.model = copy.deepcopy(model).to(experiment.device)
        loaders = build_evaluation_loaders(configs, datasets, 0, 1, experiment.device)
        self._parts = Evaluated(LocalEngine(), experiment.device, self.model, loaders)
        self._statistics = Statistics(self.model.buffers())
        self._pool = ThreadPoolExecutor(1)
        self._threads = torch.get_num_threads()
        self.submit = self._pool.submit

    def evaluate(self, state: dict[str, Any]) -> dict[str, float]:
        """The meters of what ``Server.state_dict()`` gave, in ``model``."""
        torch.set_num_threads(self._threads)  # each thread has its own number
        self.model.load_state_dict(state['parameters'], strict=False)
        self._statistics.write(state['statistics'])
        return self._experiment.evaluate(self._parts, self._experiment.configs)
