"""Training whose workers may die, stall and join: each is started by itself, with its own log."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

from dgc import NonFiniteGradientError
from dgc.elastic import ElasticOptimizer, TorchftEngine
from dgc.elastic.optimizer import Change, name_of
from dgc.engines import EngineError, LocalEngine, detect
from dgc.engines.base import as_bytes
from utils.agree import agreed
from utils.build import (
    Parts,
    build_evaluation_loaders,
    build_loading,
    build_model,
    build_optimizer,
    build_rate,
    check_meters,
    check_metric,
    common,
    scaled_rate,
    threads,
)
from utils.carried import carrying
from utils.checkpoint import CheckpointError, Position
from utils.checks import build_composition, check_elastic, naming
from utils.config import Config, ConfigError
from utils.counting import Made
from utils.criterion import build_criterion
from utils.data import Drawn, Seeded, build_datasets, collate
from utils.files import append_line
from utils.folder import LOCK, check_writable, claim, prepare_folder, writing
from utils.loading import Loading
from utils.log import RunLog, environment
from utils.progress import closing_table, say
from utils.search import Saved
from utils.seeding import seed_everything
from utils.selection import check_selection
from utils.training.best import Best, best_before
from utils.training.elastic_saving import (
    ElasticSaver,
    find,
    has_taken,
    is_complete,
    origin,
    restore,
)
from utils.training.experiment import Experiment, with_remedy
from utils.training.saving import Preempted
from utils.training.stopping import StopSignals

LONG_GAP = 1.0  # seconds between two steps that are worth a line


class Events:
    """``events.jsonl`` of a worker: what happened to it and to the others, and when.

    Attributes:
        path: Lines are appended, from when it is set.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._waiting: list[str] = []

    def add(self, event: str, **about: Any) -> None:
        """Append a line: the time, the event, and what there is to say about it."""
        self._waiting.append(json.dumps({'time': time.time(), 'event': event, **about}))
        if self.path is not None:
            with writing(self.path.parent):
                append_line(self.path, '\n'.join(self._waiting))
            self._waiting.clear()


class Share(Sampler[list[Any]]):
    """The batches of one worker in the rest of an epoch.

    A step takes the next ``size · batch`` samples of a permutation that all workers have in common;
    rank r has the r-th batch of them. So no sample is left out or used twice where the number of
    workers changes, but for those at the end of the epoch that do not fill a step.

    Args:
        total: Samples of the training data.
        batch: Samples of one worker in one step.
        seed: Of the permutation, with ``epoch`` added.
        for_processes: Whether to draw for ``Seeded``, in place of indices.

    Attributes:
        epoch: Whose permutation is drawn.
        position: Samples of the epoch that all workers together have used.
        taken: Those of the step that is made; 0 between two steps.
        rank, size: Of this worker.
        skipped: Not used here.
    """

    def __init__(self, total: int, batch: int, seed: int, for_processes: bool) -> None:
        self.total, self.batch, self.seed = total, batch, seed
        self.epoch = self.position = self.taken = self.rank = self.skipped = 0
        self.size = 1
        self.for_processes = for_processes

    @property
    def is_exhausted(self) -> bool:
        """Whether what is left of the epoch does not fill a step."""
        return self.position + self.size * self.batch > self.total

    def __iter__(self) -> Iterator[list[Any]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.total, generator=generator)
        stride = self.size * self.batch
        for first in range(self.position, self.total - stride + 1, stride):
            begin = first + self.rank * self.batch
            indices = order[begin : begin + self.batch].tolist()
            if self.for_processes:
                seed = self.seed + 1_000_003 * self.epoch
                indices = [Drawn(index, seed) for index in indices]
            yield indices

    def __len__(self) -> int:
        return self.total // (self.size * self.batch)


class ElasticLoader:
    """The batches of an epoch: before each, workers join; after each, it counts or is repeated.

    Args:
        dataset: The training data.
        share: This worker's part of it.
        progress: Of the run.
        events: Receive steps that are lost and what follows.
        loading: How samples are loaded.

    Attributes:
        optimizer, saver: Set before the first use.
        has_ended: Whether the last pass ended with the end of the epoch.
    """

    optimizer: ElasticOptimizer
    saver: ElasticSaver

    def __init__(
        self,
        dataset: Dataset,
        share: Share,
        progress: EpochProgress,
        events: Events,
        loading: Loading,
    ) -> None:
        loading.check(dataset)
        self.dataset = Seeded(dataset) if loading.processes else dataset
        self.batch_size = share.batch
        self.share, self.progress, self.events = share, progress, events
        self.has_ended = False
        self._loading = loading
        self._last, self._changes = 0.0, -1

    def __len__(self) -> int:
        return len(self.share)

    def __iter__(self) -> Iterator[Any]:
        optimizer, share, epoch = self.optimizer, self.share, self.progress.epoch
        batches, self.has_ended = None, False
        while True:
            optimizer.begin()
            if self.progress.epoch != epoch:  # this worker was behind
                return
            if share.is_exhausted:
                if optimizer.average(self.progress.buffers):
                    self.progress.end_epoch()
                    self.has_ended = True
                    return
                continue
            is_first = self._changes != len(optimizer.changes)
            if batches is None or is_first:
                batches = self._open()
            share.taken = share.size * share.batch  # also where a worker is lost in this step
            yield next(batches)
            taken, share.taken = share.taken, 0
            if optimizer.committed:
                share.position += taken
                self._note_step(is_first)
                self._changes = len(optimizer.changes)
            else:
                batches = None
                self.events.add('lost', step=optimizer.steps)
            self.saver.between_steps(optimizer.committed)

    def _open(self) -> Iterator[Any]:
        return iter(
            DataLoader(
                self.dataset,
                batch_sampler=self.share,
                collate_fn=collate,
                **self._loading.arguments(persistent=False),
            )
        )

    def _note_step(self, is_first: bool) -> None:
        """Write a line about a step after a change, or a long time after the one before."""
        now = time.time()
        gap, self._last = now - self._last if self._last else 0.0, now
        if is_first:
            members = [name_of(worker) for worker in self.optimizer.engine.members]
            self.events.add('goes on', step=self.optimizer.steps, members=members, gap=gap)
        elif gap > LONG_GAP:
            self.events.add('gap', step=self.optimizer.steps, gap=gap)


class EpochProgress:
    """How far the workers are, and the model's buffers: what a worker takes when it joins.

    Args:
        model: Has the buffers.
        share: Has the position within the epoch.

    Attributes:
        epoch: That is trained, counted from 0.
        best: The best epoch so far.
    """

    def __init__(self, model: nn.Module, share: Share) -> None:
        self._model, self._share = model, share
        self.epoch = 0
        self.best = Best()

    @property
    def samples(self) -> int:
        """Samples of the epoch that all workers together have used."""
        return self._share.position

    @property
    def position(self) -> Position:
        """Complete epochs, and batches of all workers in the one that follows."""
        return Position(self.epoch, self._share.position // self._share.batch)

    def made(self, steps: int) -> Made:
        """As in Counting: by the data, since the samples of a step are those of the workers that
        were there. Those that fill no step at the end of an epoch count with it."""
        share = self._share
        return Made(self.epoch * share.total + share.position + share.taken, steps)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Those of the model."""
        return list(self._model.buffers())

    def end_epoch(self) -> None:
        """Begin the next epoch."""
        self._go_to(self.epoch + 1, 0)

    def restore(self, saved: Saved, best: Best) -> None:
        """Continue from a checkpoint, whose buffers are the model's already, with the best epoch
        before it."""
        self.best = best
        self._go_to(saved.position.epochs, int(saved.state.get('samples', 0)))

    def _go_to(self, epoch: int, samples: int) -> None:
        self.epoch = self._share.epoch = epoch
        self._share.position = samples

    def state_dict(self) -> dict[str, Any]:
        """Epoch, position within it, the best one so far, and buffers."""
        return {
            'epoch': self.epoch,
            'position': self._share.position,
            'best': list(self.best),
            'buffers': [buffer.detach() for buffer in self.buffers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from another worker's ``state_dict()``."""
        self._go_to(int(state['epoch']), int(state['position']))
        self.best = Best(*state['best'])
        with torch.no_grad():
            for buffer, value in zip(self.buffers, state['buffers'], strict=True):
                buffer.copy_(value)


class ElasticParts(Parts):
    """What one elastic worker trains with: its engine is to itself, and it steps with others."""

    @property
    def samples_per_step(self) -> int:
        """Training samples of the workers of the present together per step."""
        return self.share.size * (self.loaders['train'].batch_size or 1)


class Elastic:
    """Workers that find each other by a lighthouse of torchft, and go on with those that are there.

    The learning rate is multiplied by the number of workers of the present, and an epoch has as
    many steps as its samples fill with these.
    """

    def run(self, experiment: Experiment) -> int:
        """Train as one worker, from the others' state where there are others; returns the exit
        code."""
        check_elastic(experiment.configs)
        check_arguments(experiment)
        with StopSignals(0) as signals:
            return run_worker(experiment, signals)


def run_worker(experiment: Experiment, signals: StopSignals) -> int:
    """Meet the others, and train to the end or until a signal; returns the exit code."""
    configs = experiment.configs
    torch.set_num_threads(threads(configs.data.num_threads_per_worker, 1))
    settings = configs.elastic.build()
    datasets = build_datasets(configs)
    seconds = experiment.patience.warning_seconds
    engine = TorchftEngine(settings, common(configs, datasets), seconds)
    engine.pipeline = configs.engine.pipeline
    folder = experiment.folder(settings.start_workers) / name_of(engine.worker)
    check_writable(folder, 0)
    with claim(folder):  # another worker of this name is refused before it meets the others
        events = Events()
        events.add('start', worker=engine.worker)
        trainer = Trainer(experiment, datasets, engine, events)
        with agreed(LocalEngine(), experiment.device):  # of itself: others may find theirs
            saved = find(experiment, folder, trainer.parts.model)
        if is_complete(saved, configs):
            engine.close()
            say(trainer.parts.engine, f'{folder} is complete: there is nothing left to train')
            return 0
        with agreed(LocalEngine(), experiment.device):
            trainer.begin(saved)
    log = trainer.open_log(folder)
    try:
        signals.waits = True
        trainer.train(log, trainer.saver(folder, log, signals, saved))
        log.close()
    except Preempted as preempted:
        log.close()
        return preempted.code
    finally:
        signals.waits = False
        trainer.close()
        log.release()
    engine.close()
    closing_table(folder, configs, trainer.parts.engine)
    return 0


def check_arguments(experiment: Experiment) -> None:
    """Raise ConfigError or EngineError for options and launchers that elastic workers lack."""
    if experiment.arguments.evaluate:
        raise ConfigError(
            '--evaluate has no use with configs/elastic/: leave that file out, and name the folder '
            'of a worker, as in --resume RUN/NAME'
        )
    if detect().size > 1:
        raise EngineError(
            f'{detect().name} starts a fixed number of workers, which end together: start each '
            'elastic worker by itself (docs/elastic.md)'
        )


def check_samples(model: nn.Module, datasets: Mapping[str, Dataset]) -> None:
    """Raise ConfigError for samples that continue each other, and for a model that takes all for
    such."""
    if getattr(datasets['train'], 'streams', None) is not None:
        raise ConfigError(
            'configs.dataset has samples that continue each other, and configs/elastic/ gives '
            'them to other workers where the number of workers changes: use windows of a text, and '
            'a model that begins each sample anew'
        )
    if carrying(model):
        raise ConfigError(
            'configs.model carries its state from batch to batch, and with configs/elastic/ '
            'samples do not continue each other: choose a model that begins each sample anew '
            '(docs/text-and-speech.md)'
        )


class Trainer:
    """One elastic worker's parts, and its epochs.

    Args:
        experiment: What is trained.
        datasets: By split.
        engine: To the other workers.
        events: Receive what happens.
    """

    def __init__(
        self,
        experiment: Experiment,
        datasets: dict[str, Dataset],
        engine: TorchftEngine,
        events: Events,
    ) -> None:
        configs, device = experiment.configs, experiment.device
        train = configs.train
        self._experiment, self._events, self._engine = experiment, events, engine
        seed_everything(configs.seed)
        check_metric(configs, datasets)
        loading, batch = (
            build_loading(configs, device),
            train.batch_size * train.num_batches_per_step,
        )
        total = len(datasets['train'])  # type: ignore[arg-type]
        self.share = Share(total, batch, configs.seed, loading.processes > 0)
        if self.share.is_exhausted:
            raise ValueError(
                f'configs.train.batch_size: {total} training samples are fewer than one step of '
                f'{batch}; use smaller batches'
            )
        model = build_model(configs, device)
        check_samples(model, datasets)
        self.progress = EpochProgress(model, self.share)
        self._loader = ElasticLoader(datasets['train'], self.share, self.progress, events, loading)
        inner = build_optimizer(configs, model, 1)
        with naming(train.compression):
            self.optimizer = ElasticOptimizer(
                inner,
                model.named_parameters(),
                build_composition(configs),
                engine,
                train.num_batches_per_step,
                len(self.share),
                self.progress,
                self._change,
            )
        self._loader.optimizer = self.optimizer
        alone = LocalEngine()  # each worker evaluates all samples, and measures its own losses
        loaders = build_evaluation_loaders(configs, datasets, 0, 1, device)
        self.parts = ElasticParts(
            engine=alone,
            device=device,
            model=model,
            loaders={'train': self._loader, **loaders},  # type: ignore[dict-item]
            criterion=build_criterion(configs, device),
            optimizer=self.optimizer,
            rate=build_rate(configs, self.optimizer, len(self.share), 1),
            share=self.share,  # type: ignore[arg-type]
            precision=train.precision,
        )
        check_meters(configs, self.parts)
        check_selection(configs, self.parts)

    def begin(self, saved: Saved | None) -> None:
        """Load a checkpoint, if there is one, and meet the others: take their state where they
        train already.

        Raises:
            CheckpointError: If it cannot be used; or where ``--resume`` does without ``auto`` ask
                for one, and no worker has any.
        """
        experiment = self._experiment
        if saved is not None:
            restore(self.parts, saved)
            best = best_before(saved, experiment.configs, self.parts.engine, experiment.device)
            self.progress.restore(saved, best)
        self.optimizer.begin()
        if experiment.resumes and not experiment.is_auto and self.progress.position == Position(0):
            raise CheckpointError(
                f'no worker has a checkpoint in {experiment.arguments.resume or "this run"}: '
                '--resume auto begins anew then'
            )
        self._origin = origin(saved, self.optimizer)

    def open_log(self, folder: Path) -> RunLog:
        """Prepare this worker's folder, and say where training goes on.

        An older run in the folder is renamed where training begins anew, without ``--resume``.
        """
        experiment, configs, first = self._experiment, self._experiment.configs, self.progress
        is_new = not experiment.resumes and first.position == Position(0)
        is_empty = all(path.name == LOCK for path in folder.iterdir())
        about = environment('torchft', [socket.gethostname()])
        held = prepare_folder(folder, configs, about, moves_aside=is_new)
        self._events.path = folder / 'events.jsonl'
        resumed_at = None if is_new or is_empty else Position(first.epoch)
        axis = configs.log.axis
        log = RunLog(folder, self.parts, resumed_at, held, axis, counting=self.progress)
        lines = [str(folder), str(self.optimizer.changes[-1]), self._origin]
        say(self.parts.engine, '\n'.join(filter(None, lines)))
        return log

    def saver(
        self, folder: Path, log: RunLog, signals: StopSignals, saved: Saved | None
    ) -> ElasticSaver:
        """Return what saves this worker from now on.

        Args:
            folder: This worker's.
            log: Its log.
            signals: Ask for its end.
            saved: What it has loaded.
        """
        if has_taken(self.optimizer.changes, self._engine.worker):
            saved = None
        configs = self._experiment.configs
        own = ElasticSaver(self.parts, configs, folder, log, signals, saved, self.progress)
        self._loader.saver = own
        return own

    def close(self) -> None:
        """End the thread that writes checkpoints."""
        self._loader.saver.close()

    def train(self, log: RunLog, saver: ElasticSaver) -> None:
        """Train to the last epoch; evaluate, log and save each.

        Raises:
            Preempted: After a signal.
            Stopped: Where this worker cannot write its files.
        """
        configs, parts = self._experiment.configs, self.parts
        while self.progress.epoch < configs.train.num_epochs:
            epoch = self.progress.epoch
            try:
                numbers = self._experiment.train_epoch(parts, configs, epoch, log)
            except NonFiniteGradientError as error:
                raise with_remedy(error, saver.has_saved()) from error
            if not self._loader.has_ended:  # this worker was behind, and goes on elsewhere
                continue
            saver.settle()
            numbers.update(self._experiment.evaluate(parts, configs))
            numbers['workers'] = self._engine.size
            saver.measured(numbers.get(configs.train.metric))
            numbers['seconds/save'] = saver.seconds()
            log.epoch(epoch, numbers)
            saver.end_epoch(is_last=self.progress.epoch >= configs.train.num_epochs)
        digest = hashlib.sha256()
        for parameter in parts.model.parameters():
            digest.update(as_bytes(parameter).cpu().numpy().tobytes())
        self._events.add('end', parameters=digest.hexdigest(), epochs=self.progress.epoch)

    def _change(self, change: Change) -> None:
        """Follow the number of workers: share of the data, steps of an epoch, learning rate."""
        configs, share, engine = self._experiment.configs, self.share, self._engine
        share.rank, share.size = engine.rank, engine.size
        steps_per_epoch = len(share)
        if not steps_per_epoch:
            raise EngineError(
                f'{engine.size} workers need {engine.size * share.batch} training samples for a '
                f'step, and there are {share.total}: start fewer workers, or use smaller batches'
            )
        step = share.position // (share.size * share.batch)
        steps = self.progress.epoch * steps_per_epoch + step
        self.optimizer.count(steps, steps_per_epoch)
        set_scaled_rate(configs, self.optimizer, engine.size)
        self.parts.rate = build_rate(configs, self.optimizer, steps_per_epoch, engine.size)
        self.parts.rate.resume(steps)
        self._events.add(
            'change',
            before=[name_of(worker) for worker in change.before],
            members=[name_of(worker) for worker in change.members],
            healed=[name_of(worker) for worker in change.healed],
            lost={name_of(worker): note._asdict() for worker, note in change.lost.items()},
            recovered=[name_of(worker) for worker in change.recovered],
            seconds=change.seconds,
        )


def set_scaled_rate(configs: Config, optimizer: Optimizer, workers: int) -> None:
    """Set the learning rate to the configured one, times batches per step and workers."""
    for group in optimizer.param_groups:
        group['lr'] = scaled_rate(configs, workers)
        group.pop('initial_lr', None)  # which a scheduler has kept
