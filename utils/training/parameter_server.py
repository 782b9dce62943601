"""Asynchronous training: one process serves, the others run the loop, each at its own pace."""

from __future__ import annotations

import itertools
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dgc import Engine, NonFiniteGradientError, engines
from dgc.engines import EngineError, LocalEngine, detect
from dgc.engines.launchers import loopback
from dgc.handshake import gather_text, shake_hands
from dgc.parameter_server import (
    Address,
    Asynchronous,
    ServerError,
    ServerSettings,
    WorkerOptimizer,
    parse_address,
)
from dgc.parameter_server.settings import (
    UNPROTECTED,
    choose_secret,
    draw_secret,
    is_loopback,
    read_key_file,
)
from dgc.parameter_server.sockets import SocketLink, derive_key
from dgc.selection import LayerError
from utils.agree import agreed
from utils.build import (
    Parts,
    aspects,
    build_model,
    build_optimizer,
    build_rate,
    build_train_loader,
    check_streams,
    common,
    threads,
)
from utils.checks import build_composition, check_asynchronous
from utils.cli import Refused
from utils.config import Config, ConfigError
from utils.criterion import build_criterion
from utils.data import Until, build_datasets
from utils.failures import report
from utils.log import EMPTY
from utils.progress import STEPS_BETWEEN_LOSSES, digits, say
from utils.search import Search
from utils.seeding import seed_everything
from utils.training.evaluation import evaluate_several, evaluated_parts, evaluates_several
from utils.training.experiment import Experiment, with_remedy
from utils.training.pushing import pushing_of
from utils.training.server import ServerProcess
from utils.training.stopping import exit_code

Datasets = dict[str, Dataset]

HOW_TO_START = (
    'configs.server.address must be set to the host:port of a server, which '
    '`python train.py --configs … --serve host:port` starts; or start this with a '
    'launcher, one process more than workers'
)


class ParameterServer:
    """Under a launcher, rank 0 serves and the others train. Started by hand, a process serves if it
    has an address to bind, and trains if it has the address of a server."""

    def workers(self, configs: Config, processes: int) -> int:
        """Return the number of workers: a launcher's processes but the one that serves."""
        return int(configs.server.workers or max(processes - 1, 1))

    def run(self, experiment: Experiment) -> int:
        """Run this process: the server, or one worker; returns the exit code."""
        configs, device = experiment.configs, experiment.device
        if configs.engine.name == 'simulated':
            raise EngineError(
                'engine simulated has no server: asynchronous training needs a launcher, or '
                'processes started by hand'
            )
        engine = engines.create(configs.engine.name, device, experiment.patience)
        torch.set_num_threads(threads(configs.data.num_threads_per_worker, engine.local_size))
        with agreed(engine, device):
            check_asynchronous(configs)
            settings = configs.server.build()
            datasets = build_datasets(configs)
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
        return 0


def run_launched(
    experiment: Experiment, settings: ServerSettings, datasets: Datasets, engine: Engine
) -> None:
    """Serve on rank 0, train on the other ranks of a launcher.

    The launcher's engine carries the server's address and secret to the workers, and is closed.
    """
    device, workers = experiment.device, engine.size - 1
    contact = ''
    with agreed(engine, device):
        if settings.workers not in (None, workers):
            raise ConfigError(
                f'configs.server.workers = {settings.workers}, but the launcher has started '
                f'{engine.size} processes, one of which serves: leave it out'
            )
        if engine.rank == 0:
            address, secret = choose_bind_address(settings, engine)
            server = ServerProcess(experiment, settings, datasets, workers, address, secret)
            contact = f'{server.address} {secret.hex() if secret else ""}'
    where, _, secret_hex = gather_text(engine, contact, device, limit=512)[0].partition(' ')
    engine.close()
    if engine.rank == 0:
        server.run()
    else:
        address = parse_address(where, 'configs.server.bind')
        train(experiment, settings, datasets, address, bytes.fromhex(secret_hex) or None)


def choose_bind_address(settings: ServerSettings, engine: Engine) -> tuple[Address, bytes | None]:
    """Where rank 0 listens, and the secret of this job, drawn where no key file is named.

    Without ``configs.server.bind`` it is the loopback address on one machine, else that of this
    machine's host name. Raises ServerError where other machines could not reach it.
    """
    if settings.bind is not None:
        address = parse_address(settings.bind, 'configs.server.bind')
    elif engine.local_size == engine.size:
        address = Address(loopback(), 0)
    else:
        address = Address(own_address(socket.gethostname()), 0)
    if settings.key == UNPROTECTED or is_loopback(address.host):
        return address, None
    return address, draw_secret() if settings.key is None else read_key_file(Path(settings.key))


def own_address(name: str) -> str:
    """The address of this machine's host name that other machines can reach, IPv4 if it has one.

    Raises:
        ServerError: The name has no such address.
    """
    remedy = (
        'set configs.server.bind to an address of rank 0 that other machines can reach, such as '
        '10.0.0.1:0'
    )
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ServerError(
            f"{name}, rank 0's host name, has no address ({error}): {remedy}"
        ) from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    addresses = [str(entry[4][0]) for entry in found]
    usable = [each for each in addresses if not is_loopback(each) and not each.startswith('fe80:')]
    if not usable:
        raise ServerError(
            f'{name} is {addresses[0]} here, where other machines cannot reach it: {remedy}'
        )
    return usable[0]


def run_by_hand(experiment: Experiment, settings: ServerSettings, datasets: Datasets) -> None:
    """Serve where ``configs.server.bind`` is set, else train with ``configs.server.address``."""
    serves = settings.bind is not None
    with agreed(LocalEngine(), experiment.device):
        where = settings.bind if serves else settings.address
        if where is None:
            raise ConfigError(HOW_TO_START)
        address = parse_address(str(where), f'configs.server.{"bind" if serves else "address"}')
        secret = choose_secret(settings.key, address.host)
        if serves:
            if settings.workers is None:
                raise ConfigError(
                    'configs.server.workers must be set: how many workers may train at once'
                )
            server = ServerProcess(
                experiment, settings, datasets, settings.workers, address, secret
            )
    if serves:
        server.run()
    else:
        train(experiment, settings, datasets, address, secret)


def evaluate(experiment: Experiment, datasets: Datasets, engine: Engine) -> None:
    """Evaluate the models that a server has saved, in one process."""
    configs, device = experiment.configs, experiment.device
    workers = configs.server.workers
    with agreed(engine, device):
        if engine.size > 1:
            raise ConfigError('--evaluate works in one process: leave the launcher out')
        if workers is None and not experiment.arguments.resume:
            raise ConfigError('--evaluate: name the run, with --resume RUN')
        source = experiment.source(experiment.earlier(workers or 1))
    if evaluates_several(experiment):
        evaluate_several(experiment, engine, datasets, source)
        return
    with agreed(engine, device):
        parts = evaluated_parts(configs, datasets, engine, device)
        saved = Search(engine, device, source, evaluate=True).last(parts.model)
        assert saved is not None
        parts.model.load_state_dict(saved.model())
    say(engine, f'evaluates {saved.about}')
    for name, value in experiment.evaluate(parts, configs).items():
        say(engine, f'[{name}] = {digits(value)}')


def train(
    experiment: Experiment,
    settings: ServerSettings,
    datasets: Datasets,
    address: Address,
    secret: bytes | None,
) -> None:
    """Train as one worker of the server at ``address`` until all updates have been made."""
    # SystemExit runs the finally below, which frees this worker's slot at once.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda received, _: sys.exit(exit_code(received)))
    key = derive_key(secret) if secret else None
    link = SocketLink(address, key, settings.heartbeat, settings.patience)
    try:
        parts, optimizer = build_worker(experiment, datasets, link)
    except Exception as error:  # concerns this worker alone: the others continue
        link.close()
        raise Refused(report(error), rank=detect().rank) from error
    log = WorkerLog(optimizer)
    by_hand = detect().size == 1  # under a launcher the server's process prints instead
    if by_hand:
        print(f'worker {optimizer.slot} of {address} trains', flush=True)
    try:
        for epoch in itertools.count(optimizer.steps // len(parts.loaders['train'])):
            if optimizer.finished:
                break
            try:
                numbers = experiment.train_epoch(parts, experiment.configs, epoch, log)
            except NonFiniteGradientError as error:  # no other rank has seen it
                seen = NonFiniteGradientError(str(error), detect().rank)
                raise with_remedy(seen, has_checkpoint=True) from error  # that of the server
            log.epoch(epoch, numbers)
        if by_hand:
            print(f'worker {optimizer.slot}: all updates have been made', flush=True)
    finally:
        optimizer.close()


def build_worker(
    experiment: Experiment, datasets: Datasets, link: SocketLink
) -> tuple[Parts, WorkerOptimizer]:
    """Join the server, and build what a worker trains with: its data depends on its slot."""
    configs, device = experiment.configs, experiment.device
    seed_everything(configs.seed)
    model = build_model(configs, device)
    check_streams(model, datasets)
    criterion = build_criterion(configs, device)
    optimizer = pushing_of(configs).worker(
        build_optimizer(configs, model, workers=1),
        model,
        build_composition(configs, Asynchronous),
        link,
        common(configs, datasets),
        configs.train.batch_size * configs.train.num_batches_per_step,
    )
    workers = optimizer.budget.worker_slots
    loader, share = build_train_loader(configs, datasets, optimizer.slot, workers, device)
    parts = Parts(
        engine=LocalEngine(),
        device=device,
        model=model,
        loaders={'train': Until(loader, lambda: optimizer.finished)},
        criterion=criterion,
        optimizer=optimizer,
        rate=build_rate(configs, optimizer, len(loader), workers),
        share=share,
        precision=configs.train.precision,
    )
    return parts, optimizer


class WorkerLog:
    """Sends the training losses to the server, which writes all files of the run."""

    def __init__(self, optimizer: WorkerOptimizer) -> None:
        self._optimizer = optimizer
        self._losses: list[float] = []

    def place(self, step: int) -> int:
        """The step: the server has places of its own."""
        return step

    def point(self, name: str, value: float, place: int) -> None:
        """Add the training loss of one step; 50 are sent together."""
        self._losses.append(value)
        if len(self._losses) == STEPS_BETWEEN_LOSSES:
            self._report()

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        """Drop it: workers write no files."""

    def layers(self, errors: Sequence[LayerError], step: int) -> None:
        """Drop it, as a histogram."""

    def trace(self, content: str, table: str) -> None:
        """Drop it, as a histogram."""

    def epoch(
        self, epoch: int, numbers: Mapping[str, float], ranks: Mapping[str, list[float]] = EMPTY
    ) -> None:
        """Send the remaining losses. The other numbers are of one worker, and are dropped."""
        if self._losses:
            self._report()

    def _report(self) -> None:
        self._optimizer.report_losses(self._losses)
        self._losses = []
