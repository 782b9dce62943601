"""What is trained: the model of a stack or of a workload, with the batches of one worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from dgc import DGCSGD, Composition
from dgc.planner import Plan, PlanRequest
from dgc.wiring import spec_of, trained
from tools.harness.workloads import WORKLOADS, loss, make_batches, make_model, sgd_for
from utils.build import (
    build_model,
    build_optimizer,
    build_train_loader,
    parameter_groups,
    threads,
)
from utils.config import Config
from utils.criterion import build_criterion
from utils.data import build_datasets
from utils.seeding import seed_everything
from utils.timing import closure

BATCHES = 4  # different batches, which are used in turn
CPU = torch.device('cpu')


class Subject(NamedTuple):
    """A model, and how one worker trains it.

    closure: the loss of the last batch of the next step, after the passes of the batches before.
    optimizer: makes the optimizer that goes with a composition's memory.
    """

    model: nn.Module
    closure: Callable[[], Tensor]
    optimizer: Callable[[Composition], Optimizer]

    def request(self, composition: Composition, saved: Plan | None = None) -> PlanRequest:
        """What the composition's planner divides: the parameters that the optimizer updates."""
        named = trained(self.optimizer(composition), self.model.named_parameters())
        rules, schedule = composition.rules, composition.schedule
        return PlanRequest([spec_of(each) for each in named], rules, schedule, saved=saved)


def of_stack(configs: Config) -> Subject:
    """The subject of a resolved configuration, on the CPU, with as many threads as in training.

    Raises:
        Exception: what the parts raise for settings that they refuse.
    """
    torch.set_num_threads(threads(configs.data.num_threads_per_worker, 1))
    seed_everything(configs.seed)
    loader, _ = build_train_loader(configs, build_datasets(configs), 0, 1, CPU)
    batches = itertools.cycle(list(itertools.islice(loader, BATCHES)))
    model, criterion = build_model(configs, CPU).train(), build_criterion(configs, CPU)
    train = configs.train

    def optimizer(composition: Composition) -> Optimizer:
        groups = parameter_groups(model, train.optimize_bn_separately)
        configured = build_optimizer(configs, model, workers=1)
        if composition.memory.holds_momentum and type(configured) is SGD:
            return train.optimizer.using(DGCSGD).build(groups)
        if not composition.memory.holds_momentum and isinstance(configured, DGCSGD):
            return train.optimizer.using(SGD).build(groups)
        return configured

    return Subject(model, closure(configs, model, criterion, batches, CPU), optimizer)


def of_workload(name: str, batch: int) -> Subject:
    """The subject of a workload. name: of WORKLOADS; batch: samples per worker and step."""
    workload = WORKLOADS[name]
    model = make_model(workload)
    batches = itertools.cycle(make_batches(workload, batch, rank=0))

    def closure() -> Tensor:
        inputs, targets = next(batches)
        return loss(model(inputs), targets)

    def optimizer(composition: Composition) -> Optimizer:
        return sgd_for(composition, model.parameters())

    return Subject(model, closure, optimizer)
