"""Builds model, data, optimizer and learning rate from a resolved configuration."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from dgc import Composition, DistributedOptimizer, Engine, LocalSteps
from dgc.engines.cores import available_cores
from dgc.handshake import average_tensors, broadcast_tensors
from dgc.parameter_server import WorkerOptimizer
from dgc.planner import Kept, Plan
from utils.adaptive import warn_of_other_betas
from utils.agree import agreed
from utils.averaged import AveragedWeights
from utils.carried import carrying, fresh
from utils.checkpoint import Position
from utils.checks import build_composition, naming
from utils.cli import Refused
from utils.config import Config, ConfigError
from utils.config.describe import function_of
from utils.criterion import build_criterion
from utils.data import TrainShare, Until, collate, evaluation_loader, own_loader, train_loader
from utils.learning_rate import LearningRate
from utils.loading import Batches, Loading
from utils.meters import MeterError, Ranking
from utils.network import prepared
from utils.precision import FP32, computing
from utils.search import Saved
from utils.seeding import seed_everything
from utils.timing import measure_step
from utils.training.averaging import Averaging, Surroundings

# Settings of torch's schedulers that count calls; configurations give them in epochs.
COUNTED_IN_EPOCHS = (
    *('T_max', 'T_0', 'milestones', 'step_size', 'step_size_up', 'step_size_down'),
    *('total_iters', 'total_steps'),
)
IN_PARTS = ('T_max', 'step_size_up', 'step_size_down')  # of which torch takes any above 0
# Those that are learning rates; configurations give that of one worker, as of the optimizer.
RATES = ('eta_min', 'base_lr', 'max_lr')

# Settings in which a server and its workers may differ, and so may elastic workers.
INDIVIDUAL = (
    *('configs.server.', 'configs.data.', 'configs.engine.', 'configs.checkpoint.'),
    *('configs.elastic.', 'configs.log.', 'configs.dataset.root'),
)


@dataclass
class Evaluated:
    """A model, and what it is evaluated with.

    Attributes:
        engine: Carries the sums of the meters.
        device: Where the model is.
        model: The network.
        loaders: Of the splits to evaluate, and of 'train' if the model is trained.
        precision: Of forward passes; see ``utils.precision``.
    """

    engine: Engine
    device: torch.device
    model: nn.Module
    loaders: dict[str, DataLoader | Batches | Until]
    precision: str = field(default=FP32, kw_only=True)

    def computing(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return computing(self.precision, self.device)


@dataclass
class Parts(Evaluated):
    """What one worker trains with.

    Attributes:
        criterion: The loss function.
        optimizer: Compresses and exchanges gradients in its step.
        rate: Sets the learning rate of each step.
        share: The sampler of the loader 'train'.
        clip_mean: Clips the gradients of parameters in place, after the exchange; None for none.
        averaged: Of the weights, which are evaluated; None for none.
        num_steps: Optimizer steps after which training ends; None for the epochs alone.
    """

    criterion: nn.Module
    optimizer: DistributedOptimizer | LocalSteps | WorkerOptimizer
    rate: LearningRate
    share: TrainShare
    clip_mean: Callable[[Iterable[nn.Parameter]], Any] | None = None
    averaged: AveragedWeights | None = None
    num_steps: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether training has made all of its steps, where they are limited."""
        return self.num_steps is not None and self.optimizer.steps >= self.num_steps

    def steps(self, epochs: int) -> int:
        """The steps of training: those of so many epochs, or fewer where they are limited."""
        planned = epochs * len(self.loaders['train'])
        return planned if self.num_steps is None else min(planned, self.num_steps)

    def epochs(self, most: int) -> int:
        """The epochs of training, the last of which may be cut short: at most ``most``."""
        return -(-self.steps(most) // len(self.loaders['train']))

    def step(self) -> None:
        """Apply the gradients: their mean over the ranks, clipped where that is set."""
        if self.clip_mean is not None:
            assert isinstance(self.optimizer, DistributedOptimizer)
            self.optimizer.synchronize()
            self.clip_mean(self.model.parameters())
        self.optimizer.step()
        if self.averaged is not None:
            assert isinstance(self.optimizer, DistributedOptimizer)
            if not self.optimizer.skips:
                self.averaged.update(self.model)

    def evaluated(self) -> Evaluated:
        """What is evaluated: the average of the weights, where there is one. A collective."""
        if self.averaged is None:
            return self
        average_tensors(self.engine, self.model.buffers())  # as those are that are evaluated
        averages = self.averaged.model
        return Evaluated(self.engine, self.device, averages, self.loaders, precision=self.precision)

    @property
    def samples_per_step(self) -> int:
        """Training samples of all workers together per step."""
        return (self.loaders['train'].batch_size or 1) * self.engine.size

    def state_dict(self) -> dict[str, Any]:
        """Everything that this worker needs to continue, beside how far it is."""
        plan = getattr(self.optimizer, 'plan', None)  # which a parameter server's worker lacks
        averaged = self.averaged
        return {
            'model': self.model.state_dict(),
            'optimizer': self.optimizer.state_dict(),
            'rate_factor': self.rate.factor,
            **({'plan': json.dumps(Plan(plan.buckets).to_json())} if plan else {}),
            **({'ema': averaged.state_dict()} if averaged and not averaged.is_empty else {}),
        }

    def resume(self, saved: Saved) -> Position:
        """Continue from a checkpoint.

        The optimizer's settings are those of the configuration, and steps are counted anew by the
        current steps per epoch: both depend on the number of workers, which may have changed. Then
        an epoch goes on at the same sample, or up to one step before it.

        Returns:
            The position in steps of this run.

        Raises:
            RuntimeError, KeyError, ValueError: Where the state does not fit.
        """
        step = int(saved.state.get('samples', 0)) // self.samples_per_step
        steps = saved.position.epochs * len(self.loaders['train']) + step
        settings = [{**group, 'params': None} for group in self.optimizer.param_groups]
        self.model.load_state_dict(saved.state['model'])
        if self.averaged is not None and 'ema' in saved.state:
            self.averaged.load_state_dict(saved.state['ema'])
        self.optimizer.load_state_dict({**saved.state['optimizer'], 'steps': steps})
        warn_of_other_betas(self.optimizer.param_groups, settings)
        for group, configured in zip(self.optimizer.param_groups, settings, strict=True):
            group.update({**configured, 'params': group['params']})
        self.rate.factor = saved.rate_factor
        self.rate.resume(steps)
        return Position(saved.position.epochs, step)


def choose_device(wanted: str | None, local_rank: int) -> torch.device:
    """The device of this worker. Raises Refused if GPUs are requested and there is none."""
    if wanted == 'gpu' and not torch.cuda.is_available():
        raise Refused('--devices gpu: torch sees no GPU here; use --devices cpu')
    if wanted == 'cpu' or not torch.cuda.is_available():
        return torch.device('cpu')
    device = torch.device('cuda', local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def threads(wanted: int | None, local_size: int) -> int:
    """CPU threads of one worker.

    Args:
        wanted: The configured number, or None for OMP_NUM_THREADS, or else an equal share of the
            cores that affinity and the container's quota allow: workers with more threads than
            cores between them mostly wait for each other.
        local_size: Workers on this machine.
    """
    if wanted is not None:
        return wanted
    if 'OMP_NUM_THREADS' in os.environ:
        return torch.get_num_threads()
    return max(int(available_cores() / local_size), 1)


def build(
    configs: Config,
    datasets: dict[str, Dataset],
    engine: Engine,
    device: torch.device,
    find: Callable[[nn.Module], Saved | None],
) -> tuple[Parts, Saved | None]:
    """Build what one rank of synchronous training needs. Raises what the parts raise.

    Args:
        configs: The configuration.
        datasets: By split.
        engine: Carries messages.
        device: Where the model is trained.
        find: Returns the checkpoint of this model from which training continues, if any.

    Returns:
        The parts, and the checkpoint, which is not loaded yet; buckets are divided as it has them.
    """
    train = configs.train
    seed_everything(configs.seed)
    with agreed(engine, device):  # before the collectives of find
        check_metric(configs, datasets)
        loader, share = build_train_loader(configs, datasets, engine.rank, engine.size, device)
        model = build_model(configs, device)
        averaged = None if train.ema is None else AveragedWeights(model, train.ema)
        criterion = build_criterion(configs, device)
        averaging: Averaging = train.averaging.build()
        ranks = averaging.ranks_per_step(engine.size)
        check_streams(model, datasets)
        composition = build_composition(configs)
        inner = build_optimizer(configs, model, ranks)
    saved = find(model)  # after what is wrong with the settings
    surroundings = Surroundings(
        model,
        with_plan(composition, saved, engine.size),
        engine,
        batches_per_step=train.num_batches_per_step,
        steps_per_epoch=len(loader),
        profile=partial(measure_step, configs, model, criterion, loader, device),
    )
    optimizer = averaging.wrap(inner, surroundings)
    broadcast_tensors(engine, model.buffers())
    loaders = build_evaluation_loaders(configs, datasets, engine.rank, engine.size, device)
    parts = Parts(
        engine=engine,
        device=device,
        model=model,
        loaders={'train': loader, **loaders},
        criterion=criterion,
        optimizer=optimizer,
        rate=build_rate(configs, optimizer, len(loader), ranks),
        share=share,
        clip_mean=None if train.clip_mean is None else train.clip_mean.build,
        averaged=averaged,
        num_steps=train.num_steps,
        precision=train.precision,
    )
    check_meters(configs, parts)
    return parts, saved


def with_plan(composition: Composition, saved: Saved | None, size: int) -> Composition:
    """A composition whose buckets are those of a checkpoint of as many ranks.

    Times are measured anew when a run is resumed. A planner that goes by them could divide the
    parameters otherwise, and the resumed run would not be the same to the bit.
    """
    planner = composition.planner
    if saved is None or saved.size != size or not planner.needs_timing:
        return composition
    if 'plan' not in saved.state:  # of an earlier version
        return composition
    kept = Kept(Plan.from_json(json.loads(saved.state['plan'])), planner)
    return replace(composition, planner=kept)


def build_optimizer(configs: Config, model: nn.Module, workers: int) -> Optimizer:
    """The configured optimizer, its learning rate that of so many workers."""
    node = configs.train.optimizer
    groups = parameter_groups(model, configs.train.optimize_bn_separately)
    if takes_names(node):
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = [{**group, 'params': [(names[p], p) for p in group['params']]} for group in groups]
    with naming(node):
        return node.build(groups, lr=scaled_rate(configs, workers))


def scaled_rate(configs: Config, workers: int) -> float:
    """The learning rate of all workers together, after the warm-up."""
    train = configs.train
    factor = train.num_batches_per_step * workers if train.scale_lr else 1
    return float(train.optimizer.lr * factor)


def takes_names(optimizer: Config) -> bool:
    """Whether an optimizer distinguishes parameters by their names."""
    return bool(getattr(function_of(optimizer), 'takes_names', False))


def build_rate(
    configs: Config, optimizer: Optimizer, steps_per_epoch: int, workers: int
) -> LearningRate:
    """The learning rate over the steps of ``optimizer``, with its warm-up and scheduler.

    A rate that is not scaled rises from near zero: there is no rate of one worker.
    """
    train = configs.train
    return LearningRate(
        optimizer,
        build_scheduler(configs, optimizer, steps_per_epoch),
        train.warmup_lr_epochs,
        steps_per_epoch,
        workers if train.scale_lr else train.warmup_lr_epochs * steps_per_epoch + 1,
        train.schedule_lr_per_epoch,
    )


def aspects(configs: Config, datasets: dict[str, Dataset]) -> dict[str, str]:
    """What all ranks must have alike before anything is built, for the handshake."""
    return {'the configuration': str(configs), 'the length of the dataset': str(lengths(datasets))}


def common(configs: Config, datasets: dict[str, Dataset]) -> str:
    """What a server and its workers, or elastic workers, must have alike, as text."""
    settings = {
        name: repr(v) for name, v in configs.flat().items() if not name.startswith(INDIVIDUAL)
    }
    return json.dumps([settings, lengths(datasets)])


def lengths(datasets: dict[str, Dataset]) -> dict[str, int]:
    """Number of samples by split."""
    return {split: len(dataset) for split, dataset in datasets.items()}  # type: ignore[arg-type]


def build_scheduler(
    configs: Config, optimizer: Optimizer, steps_per_epoch: int
) -> LRScheduler | None:
    """The configured scheduler of torch, which steps once per epoch or once per step.

    Its settings count epochs in the configuration, and its rates are those of one worker; they are
    converted to its calls, and scaled as the optimizer's rate has been.
    """
    node, rate = configs.train.scheduler, configs.train.optimizer.lr
    if node is None:
        return None
    scale = optimizer.param_groups[0]['lr'] / rate if rate else 1.0
    per_epoch = configs.train.schedule_lr_per_epoch
    given = {name: value for name, value in node.items() if value is not None}
    converted: dict[str, Any] = {}
    for name in given.keys() & RATES:
        converted[name] = each(given[name], lambda rate: rate * scale)
    for name in given.keys() & COUNTED_IN_EPOCHS:
        count = partial(calls, node, name, None if per_epoch else steps_per_epoch)
        converted[name] = each(given[name], count)
    with naming(node):
        return node.build(optimizer, **converted)


def calls(node: Config, name: str, steps: int | None, epochs: Any) -> int | float:
    """A number of epochs as one of calls of a scheduler: ``steps`` in an epoch, or None for one.

    Raises:
        ConfigError: For a number with which torch would divide by zero in a later epoch, or wait
            for a call that never comes.
    """
    least = 0 if name == 'milestones' else 1
    if isinstance(epochs, int | float) and math.isfinite(epochs):
        number = epochs if steps is None else round(epochs * steps)
        if (number >= least and number % 1 == 0) or (number > 0 and name in IN_PARTS):
            return number
    parts = '; parts of epochs need configs.train.schedule_lr_per_epoch False'
    raise ConfigError(
        f'{node._path()}.{name} = {node[name]!r}: it is in epochs after the warm-up, and must be '
        f'whole {"epochs" if steps is None else "steps"}, from {least} on'
        f'{parts if steps is None else ""}'
    )


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """``function`` of a number, or of each number of a sequence."""
    return function(value) if isinstance(value, int | float) else [function(part) for part in value]


def check_metric(configs: Config, datasets: dict[str, Dataset]) -> None:
    """Raise ValueError if configs.train.metric is not among the meters of the evaluation."""
    metric, splits = configs.train.metric, [split for split in datasets if split != 'train']
    names = [name.format(split) for name in built_meters(configs) for split in splits]
    if metric is not None and metric not in names:
        raise ValueError(f'configs.train.metric = {metric!r} is no meter; there are {names}')


def built_meters(configs: Config) -> dict[str, Any]:
    """A fresh meter for each of configs.train.meters; those that are None are left out."""
    return {name: node.build() for name, node in configs.train.meters.items() if node is not None}


def check_streams(model: nn.Module, datasets: dict[str, Dataset]) -> None:
    """Raise ConfigError where a model carries its state on to samples that do not continue it."""
    apart = [name for name, data in datasets.items() if getattr(data, 'streams', None) is None]
    if carrying(model) and apart:
        raise ConfigError(
            f'configs.model carries its state from batch to batch, and the samples of {apart[0]!r} '
            'do not continue each other: choose a data set in streams, or a model that begins each '
            'sample anew (docs/text-and-speech.md)'
        )


def ranking(configs: Config) -> Ranking:
    """Which values of configs.train.metric are better, as its meter says."""
    metric = configs.train.metric or ''
    for name, meter in built_meters(configs).items():
        before, split, after = name.partition('{}')
        is_of_split = split and metric.startswith(before) and metric.endswith(after)
        if metric == name or is_of_split:
            return Ranking(getattr(meter, 'better', 'higher'))
    return Ranking()


def check_meters(configs: Config, parts: Evaluated) -> None:
    """Apply every meter to the first samples of every split, before anything is trained.

    Raises:
        ConfigError: For a meter that cannot measure what the model returns.
    """
    training = parts.model.training
    parts.model.eval()
    for split, loader in parts.loaders.items():
        dataset: Any = getattr(loader, 'dataset', None)
        if split == 'train' or not dataset:
            continue
        first = list(range(min(2, len(dataset))))
        at_once = getattr(dataset, '__getitems__', None)  # samples may be as long as their batch
        inputs, targets = collate(at_once(first) if at_once else [dataset[i] for i in first])
        with torch.no_grad(), fresh(parts.model):  # tensors that it keeps may be used in training
            with parts.computing():
                outputs = parts.model(inputs.to(parts.device))
            for name, meter in built_meters(configs).items():
                try:
                    meter.update(outputs, targets.to(parts.device))
                except MeterError as error:
                    setting = f'configs.train.meters.{name}'
                    is_metric = configs.train.metric == name.format(split)
                    raise ConfigError(
                        f"{setting}: {error}, or leave it out: '--{setting}' None"
                        + (' --configs.train.metric None' if is_metric else '')
                    ) from error
    parts.model.train(training)


def build_model(configs: Config, device: torch.device) -> nn.Module:
    """The network, where and as it is trained."""
    model: nn.Module = configs.model.build()
    layout = torch.channels_last if configs.data.channels_last else torch.preserve_format
    return prepared(model.to(device).to(memory_format=layout), configs)


def build_train_loader(
    configs: Config, datasets: dict[str, Dataset], rank: int, size: int, device: torch.device
) -> tuple[DataLoader | Batches, TrainShare]:
    """The loader of the training data of rank ``rank`` of ``size``, and its sampler."""
    step = configs.train.batch_size * configs.train.num_batches_per_step
    common = datasets['train'], step, rank, size, configs.seed
    rows = configs.train.batch_size
    if configs.data.loader is not None:
        return own_loader(configs.data.loader, *common, rows)
    return train_loader(*common, build_loading(configs, device), rows)


def build_evaluation_loaders(
    configs: Config, datasets: dict[str, Dataset], rank: int, size: int, device: torch.device
) -> dict[str, DataLoader | Batches | Until]:
    """The loaders of the other splits: the samples of rank ``rank`` of ``size``."""
    loading, batch = build_loading(configs, device), configs.train.batch_size
    return {
        split: evaluation_loader(dataset, batch, rank, size, loading)
        for split, dataset in datasets.items()
        if split != 'train'
    }


def build_loading(configs: Config, device: torch.device) -> Loading:
    """How data is loaded: by default several processes do on GPUs, none on CPUs, whose cores
    compute.

    Raises:
        ConfigError: For a way to start processes where there are none.
    """
    on_gpu, settings = device.type == 'cuda', configs.data
    processes = settings.num_workers
    if processes is None:
        processes = torch.get_num_threads() if on_gpu else 0
    if settings.start_method is not None and not processes:
        raise ConfigError(
            f'configs.data.start_method = {settings.start_method!r} has no effect, since no '
            'processes load data: set configs.data.num_workers'
        )
    return Loading(processes, settings.start_method, pinned=on_gpu)


def parameter_groups(model: nn.Module, bn_separately: bool) -> list[dict[str, Any]]:
    """One group, or two if the parameters of BatchNorm are to be free of weight decay."""
    if not bn_separately:
        return [{'params': list(model.parameters())}]
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    separate = {p: None for norm in norms for p in norm.parameters()}  # a set, but in order
    common = [p for p in model.parameters() if p not in separate]
    return [{'params': common}, {'params': list(separate), 'weight_decay': 0.0}]
