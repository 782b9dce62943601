"""Cases of test_hook_cases: what PyTorch tests of its own communication hooks, with ours.

They run on the default group of two torch ranks, which the engine of the world has made.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dgc
from dgc.algorithms.power_sgd import power_sgd
from dgc.codec import Codec
from dgc.exchanges import AllGather
from dgc.hooks import CompressionState, compression_hook
from dgc.memory import Residual
from dgc.schedule import DensitySchedule

UNUSED = {'find_unused_parameters': True}
VIEWS = {'gradient_as_bucket_view': True}
ENGINES: list[dgc.Engine] = []  # that of the world: another one for each case takes long


class Offset(nn.Module):
    """``p + x``."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(2, 2))

    def forward(self, inputs: Tensor | float) -> Tensor:
        return self.p + inputs


class Tasks(nn.Module):
    """Three tasks, of which rank r uses those of ``used[r]``, one after another."""

    def __init__(self, *used: list[int]) -> None:
        super().__init__()
        self.tasks = nn.ModuleList(Offset() for _ in range(3))
        self.used = used[dist.get_rank()]

    def forward(self, inputs: Tensor | float) -> Tensor:
        for number in self.used:
            inputs = self.tasks[number](inputs)
        return inputs


def hooked(
    net: nn.Module, make: Callable[[], dgc.Composition] = dgc.dense, **settings: Any
) -> DistributedDataParallel:
    """``net`` in DDP with our hook."""
    model = DistributedDataParallel(net, **settings)
    model.register_comm_hook(CompressionState(make(), engine=ENGINES[0]), compression_hook)
    return model


def sparse() -> dgc.Composition:
    return dgc.deep_gradient_compression(0.1, always_sparse=True)


def coded(values: str) -> dgc.Composition:
    """All elements, in messages of this coding."""
    return dgc.Composition(
        memory=Residual(),
        codec=Codec(values, 'none'),
        exchange=AllGather(),
        schedule=DensitySchedule(1.0),
        rules=dgc.LayerRules(min_dims=0),
        always_sparse=True,
    )


def rank_one() -> dgc.Composition:
    return power_sgd(rank=1)


def mean_of_ranks(make: Callable[[], dgc.Composition]) -> list[float]:
    """The gradient in each of 20 steps whose gradient on rank r is r; zeroed in place."""
    model, found = hooked(nn.Linear(1, 5), make), []
    for _ in range(20):
        if model.module.weight.grad is not None:
            model.zero_grad(set_to_none=False)
        model(torch.tensor([float(dist.get_rank())])).sum().backward()
        found.append(float(model.module.weight.grad[0, 0]))
    return found


def logged_name() -> tuple[str | None, str | None]:
    """The hook's name in DDP's log, before and after the registration."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    before = model._get_ddp_logging_data().get('comm_hook')
    model.register_comm_hook(CompressionState(dgc.dense()), compression_hook)
    return before, model._get_ddp_logging_data().get('comm_hook')


def registered_twice() -> str:
    """The error of a second registration."""
    model = hooked(nn.Linear(1, 1))
    try:
        model.register_comm_hook(CompressionState(dgc.dense()), compression_hook)
    except RuntimeError as error:
        return str(error)
    return ''


def future() -> Tensor:
    """The gradient that the hook's future brings: of the mean of p + x, over four elements."""
    model = hooked(Offset())
    model(8.0 + dist.get_rank()).mean().backward()
    return model.module.p.grad


def of_embedding(**settings: Any) -> tuple[Tensor, Tensor]:
    """The sparse gradient of two ranks, and that of one process on all samples."""
    torch.manual_seed(0)
    alone = nn.EmbeddingBag(10, 10, sparse=True)
    model = hooked(copy.deepcopy(alone), **settings)
    inputs = torch.randint(10, (4, 2))
    alone(inputs).square().mean().backward()
    model(inputs.split(2)[dist.get_rank()]).square().mean().backward()
    return model.module.weight.grad.coalesce(), alone.weight.grad.coalesce()


def without_gradient(*used: list[int], **settings: Any) -> list[bool]:
    """Which parameters have no gradient after a backward pass in which rank r uses ``used[r]``."""
    model = hooked(Tasks(*used), **UNUSED, **settings)
    model(8.0).mean().backward()
    return [parameter.grad is None for parameter in model.parameters()]


def ignored_outputs(**settings: Any) -> list[Tensor]:
    """Gradients after forward passes without a backward pass, and one with it."""
    net = Tasks([0, 1], [0, 1]) if settings else Tasks([0, 1, 2], [0, 1, 2])
    model = hooked(net, **settings)
    for _ in range(3):
        model(8.0)
    for _ in range(3):
        model.zero_grad()
        model(8.0).mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


class Failing(torch.autograd.Function):
    """The identity, whose backward pass raises an error."""

    @staticmethod
    def forward(_: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(*_: Any) -> Tensor:
        raise RuntimeError('simulated')


def after_an_error() -> tuple[str, Tensor]:
    """The error of a backward pass, and the gradient of the next one in a new DDP."""
    net, message = nn.Linear(10, 10), ''
    inputs = torch.full((1, 10), float(dist.get_rank()), requires_grad=True)
    model = hooked(net)
    try:
        model(Failing.apply(inputs)).sum().backward()
    except RuntimeError as error:
        message = str(error)
    model._remove_autograd_hooks()
    net.zero_grad()
    model = hooked(net)
    model(inputs).sum().backward()
    return message, net.weight.grad


def uneven(
    make: Callable[[], dgc.Composition] | None,
    passes: tuple[int, int],
    interval: int = 1,
    used: tuple[list[int], ...] | None = None,
    throws: bool = False,
) -> tuple[list[Tensor], int]:
    """The parameters after ``passes[rank]`` steps under DDP's ``join()``, and the number of steps.

    Args:
        make: Of the hook's composition; None for DDP without a hook.
        passes: By rank.
        interval: Of steps that synchronize; the others are under ``no_sync``.
        used: The tasks of each rank; None for layers that all are used.
        throws: Whether ``join()`` ends all ranks with the first.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 30)) if used is None else Tasks(*used)
    unused = {} if used is None else UNUSED
    model = DistributedDataParallel(net, **unused) if make is None else hooked(net, make, **unused)
    optimizer, steps = torch.optim.SGD(net.parameters(), lr=0.01), 0
    try:
        with model.join(throw_on_early_termination=throws):
            for step in range(passes[dist.get_rank()]):
                torch.manual_seed(10 * step + dist.get_rank())
                inputs = torch.randn(4, 30) if used is None else torch.randn(2, 2)
                optimizer.zero_grad()
                with model.no_sync() if step % interval else nullcontext():
                    model(inputs).square().mean().backward()
                if not step % interval:
                    optimizer.step()
                steps += 1
    except RuntimeError as error:
        if not throws or 'exhausted' not in str(error):
            raise
    return [parameter.detach().clone() for parameter in net.parameters()], steps


CASES: dict[str, Callable[[], Any]] = {
    'mean of ranks': lambda: mean_of_ranks(dgc.dense),
    'mean of ranks, density 1': lambda: mean_of_ranks(lambda: dgc.deep_gradient_compression(1.0)),
    'mean of ranks, PowerSGD': lambda: mean_of_ranks(rank_one),
    'mean of ranks, fp16': lambda: mean_of_ranks(lambda: coded('fp16')),
    'mean of ranks, int8': lambda: mean_of_ranks(lambda: coded('int8')),
    'logged name': logged_name,
    'registered twice': registered_twice,
    'future': future,
    'embedding': of_embedding,
    'embedding, views': lambda: of_embedding(**VIEWS),
    'unused': lambda: without_gradient([0], [1]),
    'unused, views': lambda: without_gradient([0], [1], **VIEWS),
    'unused, static graph': lambda: without_gradient([0], [1], static_graph=True),
    'unused on one rank': lambda: without_gradient([0, 1, 2], [1, 2]),
    'ignored outputs': ignored_outputs,
    'ignored outputs, unused': lambda: ignored_outputs(**UNUSED),
    'after an error': after_an_error,
}
PASSES = [(3, 0), (3, 5)]
ON_RANK_0 = 'unused on rank 0'
KINDS = ('every step', 'every second step', ON_RANK_0)
UNEVEN: dict[str, tuple[Callable[[], dgc.Composition] | None, tuple[str, ...]]] = {
    'ddp': (None, KINDS),
    'hook': (dgc.dense, KINDS),
    'sparse': (sparse, (ON_RANK_0,)),
    'PowerSGD': (rank_one, ('every step',)),
}  # way: the hook's composition, and what else is uneven


def run(engine: dgc.Engine, case: str) -> Any:
    """The result of a case on this rank."""
    ENGINES[:] = [engine]
    return CASES[case]()


def uneven_cases(engine: dgc.Engine) -> dict[str, Any]:
    """This rank's parameters and steps: uneven inputs with our hook, and with DDP's own average."""
    ENGINES[:] = [engine]
    found: dict[str, Any] = {}
    for way, (make, kinds) in UNEVEN.items():
        for passes, kind in itertools.product(PASSES, kinds):
            interval = 2 if kind == 'every second step' else 1
            used = ([1, 2], [0, 1, 2]) if kind == ON_RANK_0 else None
            found[f'{way} {passes} {kind}'] = uneven(make, passes, interval, used)
    for way in ('ddp', 'hook', 'sparse'):
        found[f'{way} throws'] = uneven(UNEVEN[way][0], (3, 5), throws=True)
    return found
