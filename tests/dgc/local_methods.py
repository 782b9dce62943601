"""Every method of local steps, over the model of ``dgc_helpers``: for tests in one process and in
several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dgc_helpers import loss, parameters, values
from torch import Tensor

import dgc
from dgc.optim import MuonAndAdamW, ZeroOneAdam

NESTEROV = {'lr': 0.7, 'momentum': 0.9, 'nesterov': True}
AVERAGE = {'lr': 1.0}


def method(
    name: str = 'diloco',
    outer: dict[str, Any] = NESTEROV,
    inner: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    parts: dict[str, Any] | None = None,
    lr: float = 0.1,
    **settings: Any,
) -> Callable[..., dgc.LocalSteps]:
    """Return what wraps named parameters with a row of the table of algorithms."""

    def make(named, engine=None, **more):
        tensors = [parameter for _, parameter in named]
        composition = dgc.ALGORITHMS[name].make(**{**(parts or {}), **more.pop('parts', {})})
        kind = dgc.StreamingSteps if 'fragments' in settings else dgc.LocalSteps
        return kind(
            inner(tensors, lr=lr),
            torch.optim.SGD(tensors, **outer),
            named,
            composition,
            engine or dgc.engines.LocalEngine(),
            **{'every': 4, **settings, **more},
        )

    return make


def zero_one(
    schedule: dgc.SyncSchedule, composition: str = 'zero-one-adam', **settings: Any
) -> Callable[..., dgc.ZeroOneSteps]:
    """Return what wraps named parameters with 0/1 Adam, whose momentum goes through a row of the
    table of algorithms.

    Args:
        schedule: When ranks average.
        composition: The name of the row.
        settings: Of the optimizer.
    """

    def make(named, engine=None, parts=None):
        return dgc.ZeroOneSteps(
            ZeroOneAdam([parameter for _, parameter in named], **{'lr': 0.02, **settings}),
            named,
            dgc.ALGORITHMS[composition].make(**(parts or {})),
            engine or dgc.engines.LocalEngine(),
            schedule,
        )

    return make


ADAMW = {'inner': torch.optim.AdamW, 'lr': 0.02}
OVERLAPPED = {'fragments': 2, 'delay': 2, 'merge': 0.5}
METHODS = {
    'diloco': method(**ADAMW),
    'int8': method('quantized-diloco', parts={'values': 'int8'}),
    'int4': method('quantized-diloco', parts={'values': 'int4'}, **ADAMW),
    'fp4': method('quantized-diloco', parts={'values': 'fp4'}),
    'fp4e3': method('quantized-diloco', parts={'values': 'fp4e3'}),
    'sparse-loco': method('sparse-loco', AVERAGE, **ADAMW),
    'post-local': method(outer=AVERAGE, after=3),
    'des-loc': method(outer=AVERAGE, moments={'exp_avg': 4, 'exp_avg_sq': 8}, **ADAMW),
    'streaming': method('streaming-diloco', **OVERLAPPED, **ADAMW),
    'streaming fp4e3': method('quantized-diloco', parts={'values': 'fp4e3'}, **OVERLAPPED),
    'streaming sparse-loco': method('sparse-loco', AVERAGE, **OVERLAPPED),
    'zero-one-adam': zero_one(dgc.SyncSchedule(2, 2, 4, 4), weight_decay=0.1),
    'streaming, three steps': method('streaming-diloco', fragments=3, delay=3),
}
if hasattr(torch.optim, 'Muon'):
    METHODS['muloco'] = method('muloco', inner=MuonAndAdamW, lr=0.02)


def trained(engine: dgc.Engine, name: str, steps: int = 10) -> tuple[list[Tensor], list[Tensor]]:
    """Return θ_s and θ of a rank after some steps."""
    named = parameters()
    optimizer = METHODS[name](named, engine)
    train(optimizer, named, range(steps), engine.rank)
    return agreed(optimizer, named), values(named)


def train(optimizer, named, steps, rank=0) -> None:
    """Take these steps, each from ``loss``."""
    for step in steps:
        optimizer.zero_grad()
        loss(named, rank, step).backward()
        optimizer.step()


def agreed(optimizer, named) -> list[Tensor]:
    """θ_s, on which all ranks agree."""
    with optimizer.agreed_parameters():
        return values(named)
