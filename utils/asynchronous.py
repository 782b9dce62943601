"""Asynchronous training: one process serves, the others run the loop, each at its own pace."""

from __future__ import annotations

import itertools
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from dgc import Engine, NonFiniteGradientError, engines
from dgc.engines import EngineError, LocalEngine, detect
from dgc.handshake import gather_text, shake_hands
from dgc.parameter_server import (
    Address,
    Key,
    ServerError,
    ServerSettings,
    SocketLink,
    WorkerOptimizer,
    derive,
    keys,
    parse_address,
)
from utils.agree import REFUSALS, agreed
from utils.build import (
    Evaluated,
    Parts,
    aspects,
    build_evaluation_loaders,
    build_optimizer,
    build_rate,
    build_train_loader,
    common,
    seed_everything,
    threads,
)
from utils.checkpoint import restore
from utils.config import ConfigError
from utils.data import Until
from utils.experiment import Experiment
from utils.launch import Refused
from utils.progress import STEPS_BETWEEN_LOSSES, say
from utils.serving import Serving

BY_HAND = (
    'configs.server.address must be set to the host:port of a server, which '
    '`python -m dgc.parameter_server --configs … --bind host:port` starts; or start this with a '
    'launcher, one process more than workers'
)


class Meeting(NamedTuple):
    """Where server and workers meet, and the key that they have."""

    address: Address
    key: Key | None


class Asynchronous:
    """Rank 0 of a launcher serves, the others train; by hand, who has an address to bind serves."""

    def run(self, experiment: Experiment) -> None:
        """This process's part."""
        configs, device = experiment.configs, experiment.device
        if configs.engine.name == 'simulated':
            raise EngineError(
                'engine simulated has no server: asynchronous training needs a launcher, or '
                'processes started by hand'
            )
        engine = engines.create(configs.engine.name, device)
        torch.set_num_threads(threads(configs.data.num_threads_per_worker, engine.local_size))
        with agreed(engine, device):
            settings = configs.server.build()
            datasets = configs.dataset.build()
        shake_hands(engine, aspects(configs, datasets), device)
        try:
            if experiment.arguments.evaluate:
                evaluate(experiment, datasets, engine)
            elif engine.size > 1:
                run_launched(experiment, settings, datasets, engine)
            else:
                run_by_hand(experiment, settings, datasets)
        except ServerError as error:
            raise Refused(str(error), rank=detect().rank) from error


def run_launched(
    experiment: Experiment,
    settings: ServerSettings,
    datasets: dict[str, Dataset],
    engine: Engine,
) -> None:
    """Rank 0 serves one worker fewer than there are processes."""
    workers = engine.size - 1
    with agreed(engine, experiment.device):
        if settings.workers not in (None, workers):
            raise ConfigError(
                f'configs.server.workers = {settings.workers}, but the launcher has started '
                f'{engine.size} processes, one of which serves: leave it out'
            )
        if engine.rank == 0:
            address, secret = listening(settings, engine)
            key = derive(secret) if secret else None
            serving = Serving(experiment, settings, datasets, workers, address, key)
    told = f'{serving.address.for_people} {secret.hex()}' if engine.rank == 0 else ''
    place, _, secret_of_all = gather_text(engine, told, experiment.device, limit=512)[0].partition(
        ' '
    )
    engine.close()
    if engine.rank == 0:
        serving.run()
        return
    key = derive(bytes.fromhex(secret_of_all)) if secret_of_all else None
    meeting = Meeting(parse_address(place, 'configs.server.bind'), key)
    work(experiment, settings, datasets, meeting)


def listening(settings: ServerSettings, engine: Engine) -> tuple[Address, bytes]:
    """Where rank 0 listens, and the secret that it draws for this job; b'' for none.

    Raises ServerError where others could not reach it.
    """
    if settings.bind is not None:
        address = parse_address(settings.bind, 'configs.server.bind')
    elif engine.local_size == engine.size:
        address = Address('127.0.0.1', 0)
    else:
        name = socket.gethostname()
        address = Address(socket.gethostbyname(name), 0)
        if keys.is_loopback(address.host):
            raise ServerError(
                f'{name} is {address.host} here, where other machines cannot reach it: set '
                'configs.server.bind to an address of rank 0 that they can, such as 10.0.0.1:0'
            )
    if settings.key == keys.UNPROTECTED or keys.is_loopback(address.host):
        return address, b''
    return address, keys.draw() if settings.key is None else keys.read(Path(settings.key))


def run_by_hand(
    experiment: Experiment, settings: ServerSettings, datasets: dict[str, Dataset]
) -> None:
    """A server, or one worker."""
    with agreed(LocalEngine(), experiment.device):
        if settings.bind is None and settings.address is None:
            raise ConfigError(BY_HAND)
        if settings.bind is None:
            address = parse_address(str(settings.address), 'configs.server.address')
        else:
            address = parse_address(settings.bind, 'configs.server.bind')
        key = keys.choose(settings.key, address.host)
        if settings.bind is not None:
            if settings.workers is None:
                raise ConfigError(
                    'configs.server.workers must be set: how many workers may train at once'
                )
            serving = Serving(experiment, settings, datasets, settings.workers, address, key)
    if settings.bind is not None:
        serving.run()
    else:
        work(experiment, settings, datasets, Meeting(address, key))


def evaluate(experiment: Experiment, datasets: dict[str, Dataset], engine: Engine) -> None:
    """What the best model that a server has saved is worth, in one process."""
    configs, device = experiment.configs, experiment.device
    workers = configs.server.workers
    with agreed(engine, device):
        if engine.size > 1:
            raise ConfigError('--evaluate works in one process: leave the launcher out')
        if workers is None and not experiment.arguments.resume:
            raise ConfigError('--evaluate: name the run, with --resume RUN')
        loaders = build_evaluation_loaders(configs, datasets, 0, 1, device)
        parts = Evaluated(engine, device, configs.model.build().to(device), loaders)
        restore(parts, experiment.source(experiment.folder(workers or 1)), evaluate=True)
    for name, value in experiment.evaluate(parts, configs).items():
        say(engine, f'[{name}] = {value:.2f}')


def work(
    experiment: Experiment,
    settings: ServerSettings,
    datasets: dict[str, Dataset],
    meeting: Meeting,
) -> None:
    """Train until the server says that all updates have been made."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Ctrl-C does
    link = SocketLink(meeting.address, meeting.key, settings.heartbeat, settings.patience)
    try:
        parts, optimizer = build(experiment, datasets, link)
    except REFUSALS as error:  # of this worker: the others may well train on
        link.close()
        raise Refused(' '.join(str(error).split()), rank=detect().rank) from error
    log = WorkerLog(optimizer)
    by_hand = detect().size == 1  # else the server's process tells
    if by_hand:
        print(f'worker {optimizer.place} of {meeting.address.for_people} trains', flush=True)
    try:
        for epoch in itertools.count(optimizer.steps // len(parts.loaders['train'])):
            if optimizer.finished:
                break
            try:
                numbers = experiment.train_epoch(parts, experiment.configs, epoch, log)
            except NonFiniteGradientError as error:  # only this worker knows
                raise NonFiniteGradientError(str(error), detect().rank) from error
            log.epoch(epoch, numbers)
        if by_hand:
            print(f'worker {optimizer.place}: all updates have been made', flush=True)
    finally:  # also when we are told to end: the place is free at once
        optimizer.close()


def build(
    experiment: Experiment, datasets: dict[str, Dataset], link: SocketLink
) -> tuple[Parts, WorkerOptimizer]:
    """What a worker trains with, once the server has given it a place."""
    configs, device = experiment.configs, experiment.device
    seed_everything(configs.seed)
    model = configs.model.build().to(device)
    optimizer = WorkerOptimizer(
        build_optimizer(configs, model, workers=1),
        model.named_parameters(),
        model.buffers(),
        configs.train.compression.build(),
        link,
        common(configs, datasets),
    )
    places = optimizer.course.places
    loader, share = build_train_loader(configs, datasets, optimizer.place, places, device)
    parts = Parts(
        engine=LocalEngine(),
        device=device,
        model=model,
        loaders={'train': Until(loader, lambda: optimizer.finished)},
        criterion=configs.train.criterion.build().to(device),
        optimizer=optimizer,
        rate=build_rate(configs, optimizer, len(loader), places),
        share=share,
    )
    return parts, optimizer


class WorkerLog:
    """Tells the server the losses; what else a worker measures, it prints at the end."""

    def __init__(self, optimizer: WorkerOptimizer) -> None:
        self._optimizer = optimizer
        self._losses: list[float] = []

    def step(self, name: str, value: float, step: int) -> None:
        """A training loss."""
        self._losses.append(value)
        if len(self._losses) == STEPS_BETWEEN_LOSSES:
            self._report()

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Whatever has not been told yet."""
        if self._losses:
            self._report()

    def _report(self) -> None:
        self._optimizer.report_losses(self._losses)
        self._losses = []
