"""Cases of test_hooks: DDP with our hook beside DDP without, and beside our optimizer.

They run on the default group of two torch ranks, which the engine of the world has made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dgc
from dgc.hooks import CompressionHook

SGD = {'lr': 0.05, 'momentum': 0.9, 'weight_decay': 0.01}


def network() -> nn.Sequential:
    """The same at every call; its convolution has gradients that are not contiguous."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 16, 3).to(memory_format=torch.channels_last)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(576, 40), nn.Linear(40, 5))


def step(model: nn.Module, number: int) -> None:
    """A backward pass on samples of this rank and step."""
    torch.manual_seed(1000 * number + dist.get_rank())
    nn.functional.cross_entropy(model(torch.randn(8, 3, 8, 8)), torch.arange(8) % 5).backward()


def with_ddp(
    steps: int,
    make: Callable[[], dgc.Composition] | None,
    resume_at: int | None = None,
    whole: bool = False,
) -> list[Tensor]:
    """The parameters after ``steps``; small DDP buckets, so that it has several to rebuild."""
    net = network()
    model = DistributedDataParallel(net, bucket_cap_mb=0.05)
    optimizer = (torch.optim.SGD if make is None else dgc.DGCSGD)(net.parameters(), **SGD)
    hook = None if make is None else CompressionHook(model, optimizer, make())
    for number in range(steps):
        if number == resume_at:
            saved = hook.gather_state_dict() if whole else hook.state_dict()
            model = DistributedDataParallel(net)
            hook = CompressionHook(model, optimizer, make())
            hook.load_state_dict(saved)
        optimizer.zero_grad()
        step(model, number)
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def with_optimizer(steps: int, make) -> list[Tensor]:
    """The same with a DistributedOptimizer."""
    net = network()
    optimizer = dgc.DGCSGD(net.parameters(), **SGD)
    optimizer = dgc.DistributedOptimizer(optimizer, net.named_parameters(), make())
    for number in range(steps):
        optimizer.zero_grad()
        step(net, number)
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def with_an_empty_parameter() -> list[Tensor]:
    """The parameters after some steps of a model of which one has no elements."""
    net = nn.Linear(6, 4)
    net.none = nn.Parameter(torch.zeros(0, 3))
    model = DistributedDataParallel(net)
    optimizer = dgc.DGCSGD(net.parameters(), **SGD)
    CompressionHook(model, optimizer, sparse())
    for number in range(3):
        optimizer.zero_grad()
        torch.manual_seed(10 * number + dist.get_rank())
        (model(torch.randn(5, 6)).square().mean() + net.none.sum()).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def momentum_after_loading() -> float:
    """The momentum that the memory reads after the optimizer replaced its groups."""
    net = nn.Linear(6, 4)
    optimizer = dgc.DGCSGD(net.parameters(), **SGD)
    hook = CompressionHook(DistributedDataParallel(net), optimizer, sparse())
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]['momentum'] = 0.5
    return hook.reducer.buckets[0].momentum


def refusal() -> str:
    """The error for a parameter that the optimizer does not update."""
    net = nn.Linear(6, 4)
    optimizer = dgc.DGCSGD([net.weight], **SGD)
    try:
        CompressionHook(DistributedDataParallel(net), optimizer, sparse())
    except ValueError as error:
        return str(error)
    return ''


def sparse() -> dgc.Composition:
    return dgc.deep_gradient_compression(0.01, fp16_values=True)


def uncompressed() -> dgc.Composition:
    return dgc.deep_gradient_compression(1.0)


CASES = {
    'ddp': lambda: with_ddp(6, None),
    'hook, uncompressed': lambda: with_ddp(6, uncompressed),
    'hook': lambda: with_ddp(6, sparse),
    'hook resumed': lambda: with_ddp(6, sparse, resume_at=3),
    'hook resumed from a whole': lambda: with_ddp(6, sparse, resume_at=3, whole=True),
    'optimizer': lambda: with_optimizer(6, sparse),
    'empty': with_an_empty_parameter,
    'momentum': momentum_after_loading,
    'refusal': refusal,
}


def run(engine: dgc.Engine, case: str) -> Any:
    """The result of a case on this rank."""
    return CASES[case]()
