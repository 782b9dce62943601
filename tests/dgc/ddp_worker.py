"""Cases of test_hooks: DDP with our hook beside DDP without, and beside our optimizer.

They run on the default group of two torch ranks, which the engine of the world has made.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from scaling_helpers import documented
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

import dgc
from dgc.control import Control, GraVAC, LGreCo
from dgc.hooks import CompressionHook, CompressionState, compression_hook
from dgc.memory import MomentumCorrection, Residual
from dgc.planner import PerTensor

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


def factors(control: Control, way: str, steps: int = 9) -> list[list[float | None]]:
    """The factors of all densities that are chosen, after each step.

    Args:
        control: Chooses them.
        way: 'optimizer' for a DistributedOptimizer; else of a hook: 'known' or 'unknown' for the
            optimizer, 'hidden' where no hook sees its steps, 'pickled' in every step.
        steps: Their number.
    """
    net, rate = network(), 0.05
    inner = torch.optim.SGD(net.parameters(), lr=rate)
    composition = dgc.deep_gradient_compression(
        0.02, memory=Residual(), planner=PerTensor(), control=control
    )
    model, optimizer = net, inner
    if way == 'optimizer':
        optimizer = dgc.DistributedOptimizer(inner, net.named_parameters(), composition)
    else:
        state = CompressionState(composition, inner if way == 'known' else ())
        model = DistributedDataParallel(net)
        registered(model, state)
    found = []
    for number in range(steps):
        if way == 'pickled' and number:
            model = DistributedDataParallel(net)
            state = registered(model, pickle.loads(pickle.dumps(state)))
        optimizer.zero_grad()
        step(model, number)
        if way == 'hidden':
            for each in net.parameters():
                each.data.sub_(rate * each.grad)
        else:
            optimizer.step()
        buckets = optimizer.buckets if way == 'optimizer' else state.reducer.buckets
        controls = [
            bucket.state['control']['control'] for bucket in buckets if bucket.spec.schedule
        ]
        found.append([held.get('factor') for held in controls])
    return found


class Weighted(nn.Module):
    """``Σ inputs · weight``, whose gradient is the inputs, bit for bit."""

    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__()
        weight = torch.zeros(4, 3, 2, 2).contiguous(memory_format=memory_format)
        self.weight = nn.Parameter(weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.weight * inputs).sum()


def in_format(memory_format: torch.memory_format, passes: int) -> list[Tensor]:
    """The compressed gradients of a parameter in a memory format, and its residual in the end.

    Args:
        memory_format: Of the parameter.
        passes: Backward passes of a step, each of which sends.
    """
    net = Weighted(memory_format)
    composition = dgc.deep_gradient_compression(0.1, memory=Residual(), always_sparse=True)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = registered(model, CompressionState(composition, optimizer))
    found = []
    for number in range(4):
        optimizer.zero_grad()
        for each in range(passes):
            torch.manual_seed(100 * number + 10 * each + dist.get_rank())
            model(torch.randn(4, 3, 2, 2)).backward()
        optimizer.step()
        found.append(net.weight.grad.clone())
    return [*found, state.reducer.state_dict()['memory']['weight']['residual']]


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


class Outer(torch.optim.SGD):
    """Steps by a new optimizer over its own groups, as MuonAndAdamW does."""

    def step(self, closure: None = None) -> None:
        torch.optim.SGD(self.param_groups).step()


def optimizers_of_optimizers(is_known: bool) -> int:
    """The optimizers that a hook knows after some steps."""
    net = network()
    optimizer = Outer(net.parameters(), lr=0.05)
    composition = dgc.deep_gradient_compression(0.02, memory=Residual())
    state = CompressionState(composition, optimizer if is_known else ())
    model = DistributedDataParallel(net)
    registered(model, state)
    for number in range(4):
        optimizer.zero_grad()
        step(model, number)
        optimizer.step()
    return len(state._optimizers)


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


def registered(model: DistributedDataParallel, state: CompressionState) -> CompressionState:
    """The state, after it was registered as PyTorch's own states are."""
    model.register_comm_hook(state, dgc.hooks.compression_hook)
    return state


def with_state(
    steps: int,
    make: Callable[[], dgc.Composition],
    known: bool = False,
    pickle_at: int | None = None,
    **settings: Any,
) -> list[Tensor]:
    """``with_ddp`` with a state that is prepared in the first backward pass."""
    net = network()
    model = DistributedDataParallel(net, bucket_cap_mb=0.05)
    optimizer = dgc.DGCSGD(net.parameters(), **SGD | settings)
    state = CompressionState(make(), optimizer if known else ())
    registered(model, state)
    for number in range(steps):
        if number == pickle_at:
            model = DistributedDataParallel(net, bucket_cap_mb=0.05)
            state = registered(model, pickle.loads(pickle.dumps(state)))
        optimizer.zero_grad()
        step(model, number)
        optimizer.step()
    assert state.steps == steps
    names = {name for bucket in state.plan.buckets for name in bucket.names}
    assert names == {name for name, _ in net.named_parameters()}
    return [parameter.detach().clone() for parameter in net.parameters()]


def deep_copied() -> list[bool]:
    """Whether a model and its deep copy, registered with the copied state, stay alike."""
    model = DistributedDataParallel(network())
    state = registered(model, CompressionState(sparse()))
    step(model, 0)
    other = copy.deepcopy(model)
    registered(other, copy.deepcopy(state))
    for each in model, other:
        each.zero_grad()
        step(each, 1)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return [torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs]


def error_of(call: Callable[[], Any]) -> str:
    """The message of the error that a call raises."""
    try:
        call()
    except (ValueError, RuntimeError, ArithmeticError) as error:
        return str(error)
    return ''


def first_step(optimizer_class: type, composition: dgc.Composition, **settings: Any) -> str:
    """The error of a first step with a state that does not know the optimizer."""
    net = nn.Linear(6, 4)
    model = DistributedDataParallel(net)
    optimizer = optimizer_class(net.parameters(), lr=0.1, **settings)
    registered(model, CompressionState(composition))
    model(torch.ones(2, 6)).sum().backward()
    errors = {error_of(optimizer.step) for _ in range(2)}  # it is refused again
    assert len(errors) == 1
    return errors.pop()


def pickled_rate() -> str:
    """The error of a first pass with a state that has lost an optimizer that it needs."""
    net = nn.Linear(6, 4)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = CompressionState(dgc.ALGORITHMS['demo'].make(), optimizer)
    registered(model, pickle.loads(pickle.dumps(state)))
    return error_of(lambda: model(torch.ones(2, 6)).sum().backward())


def warnings_of(discards: bool, in_place: bool) -> list[str]:
    """The warnings of our hook in a loop that accumulates, and may discard a backward pass."""
    net = nn.Linear(6, 4)
    model = DistributedDataParallel(net)
    optimizer = dgc.DGCSGD(net.parameters(), **SGD)
    registered(model, CompressionState(sparse()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for _ in range(3):
            for _ in range(2):
                model(torch.ones(2, 6)).sum().backward()
                if discards:
                    optimizer.zero_grad(set_to_none=not in_place)
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=not in_place)
    return [text for each in caught if 'zero_grad()' in (text := str(each.message))]


def late_groups() -> str:
    """The error for groups of different momentum that were not known in the first pass."""
    net = nn.Linear(6, 4)
    model = DistributedDataParallel(net)
    groups = [{'params': [net.weight], 'momentum': 0.5}, {'params': [net.bias], 'momentum': 0.9}]
    optimizer = dgc.DGCSGD(groups, lr=0.1)
    rules = dgc.LayerRules(min_dims=0)
    registered(model, CompressionState(dgc.deep_gradient_compression(1.0, rules=rules)))
    model(torch.ones(2, 6)).sum().backward()
    return error_of(optimizer.step)


def other_model() -> str:
    """The error for a second model with the same state."""
    state = CompressionState(sparse())
    for _ in range(2):
        model = DistributedDataParallel(nn.Linear(6, 4))
        registered(model, state)
        error = error_of(lambda: model(torch.ones(2, 6)).sum().backward())  # noqa: B023
    return error


@cache
def alone() -> dist.ProcessGroup:
    """A group of this rank only."""
    return dist.new_group([dist.get_rank()], use_local_synchronization=True)


def backwards() -> dist.ProcessGroup:
    """A group of both ranks, in the other order."""
    return dist.new_group([1, 0], sort_ranks=False)


def in_group(group: dist.ProcessGroup, hooked: str) -> list[Tensor]:
    """The mean gradients in a process group, with and without our hook."""
    net = network()
    model = DistributedDataParallel(net, process_group=group)
    if hooked == 'state':
        registered(model, CompressionState(dgc.dense()))
    elif hooked == 'hook':
        CompressionHook(model, torch.optim.SGD(net.parameters(), lr=0.1), dgc.dense())
    step(model, 0)
    return [parameter.grad for parameter in net.parameters()]


def other_group() -> str:
    """The error for a process group that is not DDP's."""
    model = DistributedDataParallel(nn.Linear(6, 4), process_group=alone())
    registered(model, CompressionState(sparse(), process_group=dist.group.WORLD))
    return error_of(lambda: model(torch.ones(2, 6)).sum().backward())


def other_hook() -> list[Tensor]:
    """Gradients where a hook that DDP knows calls ours, whose state it does not know."""
    net = network()
    model = DistributedDataParallel(net, process_group=alone())
    state = CompressionState(dgc.dense(), process_group=alone())
    model.register_comm_hook(None, lambda _, bucket: compression_hook(state, bucket))
    step(model, 0)
    assert state.reducer.engine.size == 1
    assert state.reducer.buckets[0].members[0].name.startswith('parameter ')
    return [parameter.grad for parameter in net.parameters()]


def mixed_precision() -> str:
    """The error where DDP has a hook of its own, which it registers on a GPU only."""
    net = nn.Linear(6, 4)
    model = DistributedDataParallel(net)
    model.mixed_precision = object()
    optimizer = dgc.DGCSGD(net.parameters(), **SGD)
    return error_of(lambda: CompressionHook(model, optimizer, sparse()))


class Branches(nn.Module):
    """Two branches of which a pass takes one, several, or none beside the common layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.common = nn.Linear(6, 40)
        self.branches = nn.ModuleList(nn.Linear(40, 30) for _ in range(2))

    def forward(self, inputs: Tensor, taken: Sequence[int]) -> Tensor:
        """The sum of squares of the branches taken."""
        hidden = self.common(inputs).tanh()
        return hidden.mean() + sum(self.branches[each](hidden).square().mean() for each in taken)


def loss(model: nn.Module, seed: int, taken: Sequence[int]) -> Tensor:
    """The loss on samples of this rank."""
    torch.manual_seed(1000 * seed + dist.get_rank())
    return model(torch.randn(4, 6), taken)


TAKEN = {
    'all': lambda number: [0, 1],
    'all ranks': lambda number: [number % 2],
    'one rank': lambda number: [dist.get_rank()] if number % 3 else [0, 1],
}


def residuals(memory: dict[str, dict[str, Tensor]], entry: str) -> list[Tensor]:
    """What the ranks' memories hold of each parameter, on average."""
    held = [memory[name][entry].clone() for name, _ in Branches().named_parameters()]
    for each in held:
        dist.all_reduce(each)
    return [each / dist.get_world_size() for each in held]


def conserved(
    taken: str = 'all ranks',
    passes: int = 1,
    kinds: Sequence[str] = ('sync',),
    in_place: bool = False,
    momentum: float | None = None,
    restart: bool = False,
    overflows: Mapping[int, int] | None = None,
    hidden: bool = False,
    control: Control | None = None,
    **settings: Any,
) -> float:
    """The largest difference, relative to the largest sum, between what the ranks' gradients add up
    to, and what was applied and is left in their memories.

    Args:
        taken: The branches of a pass, by its number.
        passes: Backward passes of a step.
        kinds: 'sync' or 'no_sync' for each of them.
        in_place: Zero gradients in place.
        momentum: That of a MomentumCorrection; None for a Residual.
        restart: Pickle the state in the middle, and go on with another model.
        overflows: Step → the pass in which a gradient of rank 1 is infinite, which ends the step
            for a GradScaler; None where losses are not scaled.
        hidden: No hook sees the optimizer step, as where it updates copies of the parameters.
        control: Chooses densities.
        settings: Of DistributedDataParallel.
    """
    net = Branches()
    parameters = list(net.parameters())
    named = MomentumCorrection(momentum_masking=False) if momentum is not None else Residual()
    composition = dgc.deep_gradient_compression(
        0.1, memory=named, rules=dgc.LayerRules(min_dims=0), always_sparse=True, control=control
    )
    make = torch.optim.SGD if momentum is None else dgc.DGCSGD
    optimizer = make(parameters, lr=0.0, momentum=momentum or 0.0)
    if hidden:
        optimizer.step = lambda: None
    model = DistributedDataParallel(net, **settings)
    scaler = GradScaler(
        'cpu', 1000.0, 1.7, growth_interval=1, enabled=overflows is not None
    )  # changes its scale in each step
    state = registered(model, CompressionState(composition, scaler=scaler))
    scales = []

    expected = [torch.zeros_like(p) for p in parameters]
    velocity = [torch.zeros_like(p) for p in parameters]
    applied = [torch.zeros_like(p) for p in parameters]
    for number in range(6):
        if restart and number == 3:
            model = DistributedDataParallel(net, **settings)
            state = registered(model, pickle.loads(pickle.dumps(state)))
            state.scaler = scaler
        optimizer.zero_grad(set_to_none=not in_place)
        is_lost = number in (overflows or {})
        sums, used = [torch.zeros_like(p) for p in parameters], torch.zeros(len(parameters))
        for each, kind in zip(range(passes), kinds * passes, strict=False):
            seed = passes * number + each
            branches = TAKEN[taken](seed)
            factor = 1.0
            if is_lost and overflows[number] == each and dist.get_rank() == 1:
                factor = torch.inf
            value = loss(net, seed, branches)
            for index, grad in enumerate(torch.autograd.grad(value, parameters, allow_unused=True)):
                if grad is not None:
                    sums[index] += grad
                    used[index] = 1
            if kind == 'no_sync':
                with model.no_sync():
                    scaler.scale(loss(model, seed, branches) * factor).backward()
            else:
                scaler.scale(loss(model, seed, branches) * factor).backward()
        dist.all_reduce(used)
        if scaler.is_enabled():
            scaler.unscale_(optimizer)
        for index, (p, total) in enumerate(zip(parameters, sums, strict=True)):
            dist.all_reduce(total)
            if used[index] and not is_lost:  # else its momentum stays, too
                velocity[index].mul_(momentum or 0.0).add_(total / dist.get_world_size())
                expected[index] += velocity[index]
            if p.grad is not None and not is_lost:
                applied[index] += p.grad
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert state.steps == 6
    check_scales(scales, overflows)
    entry = 'residual' if momentum is None else 'velocity'
    left = residuals(state.reducer.state_dict()['memory'], entry)
    assert max(float(each.abs().max()) for each in left) > 1e-3  # there is something to lose
    largest = max(float(each.abs().max()) for each in expected)
    ends = zip(expected, applied, left, strict=True)
    return max(float((e - a - r.view_as(e)).abs().max()) for e, a, r in ends) / largest


def check_scales(scales: Sequence[float], overflows: Mapping[int, int] | None) -> None:
    """Assert that the scale backed off where it had to, and is the same on all ranks."""
    expected, scale = [], 1000.0
    for number in range(len(scales)):
        scale *= 0.5 if number in (overflows or {}) else 1.7
        expected.append(1.0 if overflows is None else scale)
    torch.testing.assert_close(list(scales), expected, rtol=1e-5, atol=0.0)


def parity(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    hooked: bool,
    composition: Callable[[], dgc.Composition] = dgc.dense,
    passes: int = 1,
    in_place: bool = False,
    known: bool = True,
    taken: str = 'all ranks',
    overflow: int | None = None,
    **settings: Any,
) -> list[Tensor]:
    """The parameters of ``Branches`` after some steps, with our hook or plain DDP.

    Args:
        overflow: The step in which rank 1's loss is infinite; None where losses are not scaled.
    """
    net = Branches()
    model = DistributedDataParallel(net, **settings)
    optimizer = make(list(net.parameters()))
    scaler = GradScaler('cpu', 1024.0, growth_interval=2, enabled=overflow is not None)
    if hooked:
        given = optimizer if known else ()
        registered(model, CompressionState(composition(), given, scaler=scaler))
    for number in range(6):
        optimizer.zero_grad(set_to_none=not in_place)
        for each in range(passes):
            seed = passes * number + each
            factor = torch.inf if number == overflow and dist.get_rank() else 1.0
            scaler.scale(loss(model, seed, TAKEN[taken](seed)) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    return [parameter.detach().clone() for parameter in net.parameters()]


def differs(ours: Callable, theirs: Callable, **settings: Any) -> float:
    """The largest difference between our hook with one optimizer and plain DDP with another."""
    composition = settings.pop('composition', dgc.dense)
    known = settings.pop('known', True)
    first = parity(ours, True, composition, known=known, **settings)
    second = parity(theirs, False, **settings)
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def sgd(make: type, **settings: Any) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Make an optimizer."""
    return lambda parameters: make(parameters, **{'lr': 0.5, 'momentum': 0.9} | settings)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer."""
    return torch.optim.AdamW(parameters, lr=0.01)


def fused(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer that a GradScaler calls in each step, with the scale."""
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


def with_momentum(**settings: Any) -> float:
    """``differs`` of momentum correction and DGCSGD, against SGD's own momentum."""
    both = {'nesterov': settings.pop('nesterov', False)}
    ours, theirs = sgd(dgc.DGCSGD, **both), sgd(torch.optim.SGD, **both)
    return differs(ours, theirs, composition=uncompressed, **settings)


def two_optimizers() -> float:
    """``differs`` with one optimizer for each half of the parameters."""

    results = []
    for hooked in (True, False):
        net = Branches()
        model = DistributedDataParallel(net)
        first, second = list(net.common.parameters()), list(net.branches.parameters())
        kind = dgc.DGCSGD if hooked else torch.optim.SGD
        optimizers = [kind(first, lr=0.5, momentum=0.9), torch.optim.AdamW(second, lr=0.01)]
        if hooked:
            registered(model, CompressionState(uncompressed(), optimizers))
        for number in range(4):
            for each in optimizers:
                each.zero_grad()
            loss(model, number, [0, 1]).backward()
            for each in optimizers:
                each.step()
        results.append([p.detach().clone() for p in net.common.parameters()])
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))


def embedding(hooked: bool, passes: int = 1) -> list[Tensor]:
    """The parameters of a model with sparse gradients, after some steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True, mode='sum'), nn.Linear(8, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # more amplifies rounding
    if hooked:
        registered(model, CompressionState(dgc.dense()))
    for number in range(4):
        optimizer.zero_grad()
        for each in range(passes):
            torch.manual_seed(100 * number + 10 * each + dist.get_rank())
            model(torch.randint(50, (6, 4))).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def accumulated() -> str:
    """The error of a second backward pass, with a memory that applies momentum at each one."""
    net = nn.Linear(6, 4)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    registered(model, CompressionState(dgc.ALGORITHMS['demo'].make(), optimizer))
    model(torch.ones(2, 6)).sum().backward()
    return error_of(lambda: model(torch.ones(2, 6)).sum().backward())


def scaler_not_given(overflow: bool, known: bool = False, other: bool = False) -> str:
    """The error of the documented loop with a scaler that the state was not given.

    Args:
        overflow: In the first backward pass, on rank 1.
        known: Whether the state was given the optimizer.
        other: Whether it was given another scaler.
    """
    net = nn.Linear(6, 4)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = GradScaler('cpu')
    state = CompressionState(dgc.dense(), optimizer if known else ())
    state.scaler = GradScaler('cpu') if other else None
    if other:
        state.scaler.scale(torch.ones(()))
    registered(model, state)

    def step() -> None:
        factor = torch.inf if overflow and dist.get_rank() else 1.0
        scaler.scale(model(torch.ones(2, 6)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    return error_of(step)


def skipping() -> str:
    """The error for a composition that skips steps, without a scaler that does."""
    return error_of(lambda: CompressionState(dgc.dense(nonfinite='skip')))


def float16() -> str:
    """The error for parameters that no scaler divides."""
    model = DistributedDataParallel(nn.Linear(6, 4).half())
    scaler = GradScaler('cpu')
    registered(model, CompressionState(dgc.dense(), scaler=scaler))
    inputs = torch.ones(2, 6, dtype=torch.float16)
    return error_of(lambda: scaler.scale(model(inputs).sum()).backward())


def as_documented() -> bool:
    """Whether the snippet of docs/mixed-precision.md trains as DDP does, at density 1."""
    results = []
    for snippet in (documented(1), ''):
        torch.manual_seed(0)
        net = nn.Linear(6, 4)
        names = {
            'torch': torch, 'dgc': dgc, 'CompressionState': CompressionState,
            'compression_hook': compression_hook, 'model': DistributedDataParallel(net),
            'scaler': GradScaler('cpu'),
        }  # fmt: skip
        exec(snippet.replace('0.001', '1.0'), names)
        sgd, scaler = torch.optim.SGD(net.parameters(), lr=0.1), names['scaler']
        for number in range(3):
            sgd.zero_grad()
            inputs = torch.full((2, 6), number + dist.get_rank() + 1.0)
            scaler.scale(names['model'](inputs).square().mean()).backward()
            scaler.step(sgd)
            scaler.update()
        results.append(net.weight.detach().clone())
    return torch.allclose(*results)


def half_precision(dtype: torch.dtype) -> list[bool]:
    """Whether the mean of gradients of two bytes is the float32 mean, rounded once, and the memory
    is float32; uncompressed, and at density 1."""
    found = []
    rules = dgc.LayerRules(min_dims=0)
    compressed = dgc.deep_gradient_compression(1.0, rules=rules, always_sparse=True)
    for composition in (dgc.dense(), compressed):
        torch.manual_seed(0)
        net = nn.Linear(6, 4).to(dtype)
        model = DistributedDataParallel(net)
        state = registered(model, CompressionState(composition))
        torch.manual_seed(dist.get_rank())
        inputs = torch.randn(5, 6).to(dtype)
        own = torch.autograd.grad(net(inputs).square().mean(), list(net.parameters()))
        model(inputs).square().mean().backward()
        for parameter, gradient in zip(net.parameters(), own, strict=True):
            total = gradient.float()
            dist.all_reduce(total)
            found.append(torch.equal(parameter.grad, (total / 2).to(dtype)))
        kept = state.reducer.state_dict()['memory'].values()
        found.append(all(t.dtype == torch.float32 for each in kept for t in each.values()))
    return found


UNUSED = {'find_unused_parameters': True}
VIEWS = {'gradient_as_bucket_view': True}
CONTROLS = {
    'GraVAC': lambda: GraVAC(largest=16, gain=0.2, window=2),
    'LGreCo': lambda: LGreCo(every=2),
}
FORMATS = {'contiguous': torch.contiguous_format, 'channels last': torch.channels_last}

CASES = {
    'ddp': lambda: with_ddp(6, None),
    'hook, uncompressed': lambda: with_ddp(6, uncompressed),
    'hook': lambda: with_ddp(6, sparse),
    'hook resumed': lambda: with_ddp(6, sparse, resume_at=3),
    'hook resumed from a whole': lambda: with_ddp(6, sparse, resume_at=3, whole=True),
    'optimizer': lambda: with_optimizer(6, sparse),
    **{
        f'{way}, {name}': lambda way=way, make=make: factors(make(), way)
        for way in ('optimizer', 'known', 'unknown', 'hidden', 'pickled')
        for name, make in CONTROLS.items()
    },
    **{
        f'{name}, {passes}': lambda each=each, passes=passes: in_format(each, passes)
        for name, each in FORMATS.items()
        for passes in (1, 2)
    },
    'empty': with_an_empty_parameter,
    'momentum': momentum_after_loading,
    'optimizers of a known one': lambda: optimizers_of_optimizers(True),
    'optimizers of an unknown one': lambda: optimizers_of_optimizers(False),
    'refusal': refusal,
    'state': lambda: with_state(6, sparse),
    'state, uncompressed': lambda: with_state(6, uncompressed),
    'state pickled': lambda: with_state(6, sparse, pickle_at=3),
    'nesterov': lambda: with_state(6, sparse, known=True, nesterov=True),
    'nesterov pickled': lambda: with_state(6, sparse, known=True, nesterov=True, pickle_at=3),
    'deep copy': deep_copied,
    'twice': lambda: first_step(torch.optim.SGD, sparse(), momentum=0.9),
    'never': lambda: first_step(dgc.DGCSGD, dgc.dense(), momentum=0.9),
    'late nesterov': lambda: first_step(dgc.DGCSGD, sparse(), momentum=0.9, nesterov=True),
    'rate': lambda: error_of(lambda: CompressionState(dgc.ALGORITHMS['demo'].make())),
    'accumulated': accumulated,
    'late groups': late_groups,
    'other model': other_model,
    'alone, ddp': lambda: in_group(alone(), 'none'),
    'alone, state': lambda: in_group(alone(), 'state'),
    'alone, hook': lambda: in_group(alone(), 'hook'),
    'backwards, ddp': lambda: in_group(backwards(), 'none'),
    'backwards, state': lambda: in_group(backwards(), 'state'),
    'rate, pickled': pickled_rate,
    'discarded': lambda: [warnings_of(True, in_place) for in_place in (True, False)],
    'not discarded': lambda: [warnings_of(False, in_place) for in_place in (True, False)],
    'other group': other_group,
    'other hook': other_hook,
    'mixed precision': mixed_precision,
    'no scaler': lambda: scaler_not_given(overflow=False),
    'no scaler, known': lambda: scaler_not_given(overflow=False, known=True),
    'no scaler, overflow': lambda: scaler_not_given(overflow=True),
    'other scaler': lambda: scaler_not_given(overflow=False, other=True),
    'skipping': skipping,
    'bfloat16': lambda: half_precision(torch.bfloat16),
    'half': lambda: half_precision(torch.float16),
    'as documented': as_documented,
    'float16': float16,
    'two optimizers': two_optimizers,
    'embedding, ddp': lambda: embedding(False),
    'embedding': lambda: embedding(True),
    'embedding accumulated, ddp': lambda: embedding(False, passes=2),
    'embedding accumulated': lambda: embedding(True, passes=2),
}
CONSERVING = {
    'all used': {'taken': 'all'},
    'unused on one rank': {'taken': 'one rank', **UNUSED},
    'unused on all ranks': {**UNUSED},
    'unused, restarted': {'restart': True, **UNUSED},
    'unused, zeroed in place': {'in_place': True, **UNUSED},
    'unused, views': {**UNUSED, **VIEWS},
    'unused, momentum': {'momentum': 0.5, **UNUSED},
    'unused, momentum, restarted': {'momentum': 0.5, 'restart': True, **UNUSED},
    'accumulated': {'taken': 'all', 'passes': 3},
    'accumulated, views': {'taken': 'all', 'passes': 3, **VIEWS},
    'accumulated, zeroed in place': {'taken': 'all', 'passes': 3, 'in_place': True},
    'accumulated, unused': {'passes': 2, **UNUSED},
    'accumulated, momentum': {'taken': 'all', 'passes': 3, 'momentum': 0.5},
    'accumulated, momentum, unused': {'passes': 2, 'momentum': 0.5, **UNUSED},
    'no_sync': {'taken': 'all', 'passes': 3, 'kinds': ['no_sync', 'no_sync', 'sync']},
    'no_sync between': {'taken': 'all', 'passes': 3, 'kinds': ['sync', 'no_sync', 'sync']},
    'no_sync, unused': {'passes': 2, 'kinds': ['no_sync', 'sync'], **UNUSED},
    'scaled': {'taken': 'all', 'overflows': {}},
    'scaled, overflow': {'taken': 'all', 'overflows': {0: 0, 3: 0, 4: 0}, 'momentum': 0.5},
    'scaled, views': {'taken': 'all', 'overflows': {2: 0}, **VIEWS},
    'scaled, unused': {'overflows': {2: 0}, **UNUSED},
    'scaled, unused on one rank': {'taken': 'one rank', 'overflows': {2: 0}, **UNUSED},
    'scaled, restarted': {'taken': 'all', 'overflows': {2: 0, 4: 0}, 'restart': True},
    'scaled, accumulated': {'taken': 'all', 'passes': 3, 'overflows': {2: 0, 3: 2}},
    'scaled, accumulated, in place': {
        'taken': 'all', 'passes': 3, 'overflows': {1: 1, 3: 2}, 'in_place': True,
    },
    'scaled, accumulated, momentum': {
        'taken': 'all', 'passes': 2, 'momentum': 0.5, 'overflows': {0: 1, 3: 0, 4: 1},
    },
    'control, scaled, accumulated': {
        'taken': 'all', 'passes': 3, 'overflows': {2: 0, 3: 2}, 'momentum': 0.5,
        'control': GraVAC(largest=5, gain=0.01, window=2),
    },
    'scaled, hidden': {'taken': 'all', 'overflows': {3: 0}, 'hidden': True},
    'scaled, hidden, in place': {
        'taken': 'all', 'passes': 2, 'overflows': {2: 1, 4: 1}, 'hidden': True, 'in_place': True,
    },
    'scaled, accumulated, unused': {'passes': 2, 'overflows': {2: 0, 3: 1}, **UNUSED},
    'scaled, no_sync': {
        'taken': 'all', 'passes': 2, 'kinds': ['no_sync', 'sync'], 'overflows': {2: 0, 3: 1},
    },
}  # fmt: skip
EQUAL = {
    'AdamW': lambda: differs(adamw, adamw, taken='all', known=False),
    'rebuilt views': lambda: with_momentum(taken='all', known=False, **VIEWS),
    'static graph': lambda: with_momentum(taken='all', static_graph=True, known=False),
    'unused': lambda: with_momentum(**UNUSED),
    'accumulated': lambda: with_momentum(taken='all', passes=3),
    'accumulated, in place': lambda: with_momentum(taken='all', passes=3, in_place=True),
    'accumulated, Nesterov': lambda: with_momentum(taken='all', passes=3, nesterov=True),
    'accumulated, late': lambda: with_momentum(taken='all', passes=2, known=False),
    'scaled': lambda: with_momentum(taken='all', overflow=2),
    'scaled from an overflow on': lambda: with_momentum(taken='all', overflow=0, known=False),
    'scaled, AdamW': lambda: differs(adamw, adamw, taken='all', known=False, overflow=3),
    'scaled, fused': lambda: differs(fused, fused, taken='all', known=False, overflow=1),
    'scaled, accumulated': lambda: with_momentum(taken='all', passes=3, overflow=2),
}


def run(engine: dgc.Engine, case: str) -> Any:
    """The result of a case on this rank."""
    return CASES[case]()


def conserving(engine: dgc.Engine) -> dict[str, float]:
    """The relative error of every case of CONSERVING."""
    with warnings.catch_warnings():
        warnings.filterwarnings('error', r'zero_grad\(\) discarded')  # nothing is
        return {case: conserved(**settings) for case, settings in CONSERVING.items()}


def equal(engine: dgc.Engine) -> dict[str, float]:
    """The difference to plain DDP of every case of EQUAL."""
    return {case: call() for case, call in EQUAL.items()}
