"""How an optimizer updates each parameter, for the kernel that applies a sparse mean gradient.

The kernel reads and writes what the optimizer's own ``step()`` would, to the same bits, in one pass
over parameters and buffers and without a dense gradient. It covers DGCSGD, and torch's SGD in its
default form; whatever it does not cover takes the dense path. Adam is not covered: the square root
that torch takes from MKL differs in the last bit from that of the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from dgc import ops
from dgc.ops import native, reference
from dgc.ops.contract import Step, Target
from dgc.ops.gradients import fit
from dgc.optim.sgd import DGCSGD
from dgc.sparse import Sparse

Group = dict[str, Any]
Rule = Callable[[Tensor], Target | None]  # how a parameter is updated; None where not covered

# Settings of torch's SGD that select another arithmetic than that of the plain loop.
SWITCHES = ('maximize', 'foreach', 'fused', 'differentiable')

# Where torch defines what it wraps around ``step``: schedulers, the profiler, ``no_grad``.
WRAPPERS = ('torch.optim.lr_scheduler', 'torch.optim.optimizer', 'torch.utils._contextlib')


def is_covered(optimizer: Optimizer, own_hook: int) -> bool:
    """Return whether the kernel covers the kind of an optimizer, and nothing watches its steps.

    A subclass may do more than its base; a hook may read ``.grad``.

    Args:
        optimizer: The wrapped one.
        own_hook: Of the hooks before its steps, the one that reads no gradient.
    """
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    if type(optimizer) not in RULES or replaced(optimizer):
        return False
    return not (after or before.keys() - {own_hook} or watched_everywhere())


def replaced(optimizer: Optimizer) -> bool:
    """Return whether a program has replaced ``step`` of an optimizer or of its class. A learning
    rate scheduler does so to count steps, which does not matter."""
    kind = type(optimizer)
    steps = kind.step, vars(optimizer).get('step', kind.step)
    return any(unwrapped(step) is not STEPS[kind] for step in steps)


def unwrapped(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that torch has wrapped. Wrappers of others may read ``.grad``, and stay."""
    while hasattr(step, '__wrapped__'):
        if getattr(step, '__globals__', {}).get('__name__') not in WRAPPERS:
            break
        step = step.__wrapped__
    return step


def watched_everywhere() -> bool:
    """Return whether a hook is called at the steps of all optimizers."""
    return bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks)


def is_plain(group: Group) -> bool:
    """Return whether the settings of a group are those that the kernel covers: no tensors, such as
    ``lr`` may be, and no other arithmetic."""
    has_tensors = any(isinstance(value, Tensor) for value in group.values())
    return not has_tensors and not any(group.get(name) for name in SWITCHES)


def targets_of(
    optimizer: Optimizer, parameters: Iterable[tuple[Tensor, Group | None]]
) -> list[Target] | None:
    """Return how ``optimizer`` updates parameters in its next step; None where the kernel does not
    cover that of one of them.

    Creates the buffers of weight decay of a DGCSGD, and nothing else.

    Args:
        optimizer: One that ``is_covered``.
        parameters: On a device with a C++ kernel, each with its group, which ``is_plain``, or None
            for one that is left alone.
    """
    rules: dict[int, Rule] = {}
    targets = []
    for parameter, group in parameters:
        if group is None:
            targets.append(Target(parameter, Step.NONE))
            continue
        rule = rules.get(id(group))
        if rule is None:
            rule = rules[id(group)] = RULES[type(optimizer)](optimizer, group)
        target = rule(parameter)
        if target is None:
            return None
        targets.append(target)
    used = [target for target in targets if target.step is not Step.NONE]
    buffers = [target.buffer for target in used if target.buffer is not None]
    fits = fit([*(target.parameter for target in used), *buffers])
    return targets if fits and all(map(is_exact, {each.step for each in used})) else None


@cache
def is_exact(step: Step) -> bool:
    """Return whether kernel and torch round a step alike on this processor.

    Where torch computes a product and a sum in one instruction depends on the instruction set that
    it was compiled for, and on its version. So both are computed once, for some numbers.
    """
    if step is Step.NONE or not ops.is_native(torch.device('cpu')):
        return step is Step.NONE
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(3, 261, generator=draw, dtype=torch.float32)
    mean = Sparse(numbers[2, ::3].contiguous(), torch.arange(0, 261, 3), 261)
    results = []
    for kernels in (native, reference):
        parameter, buffer = numbers[0].clone(), numbers[1].clone()
        target = Target(parameter, step, buffer if step.has_buffer else None, step.example)
        kernels.apply([target], [mean], 0.3)
        results.append(torch.stack([parameter, buffer]))
    return torch.equal(*results)


def of_dgcsgd(optimizer: Optimizer, group: Group) -> Rule:
    """Return the rule of the parameters of a group."""
    assert isinstance(optimizer, DGCSGD)
    rate, momentum, decay = group['lr'], group['momentum'], group['weight_decay']
    scaled = 1 - rate * decay, -rate
    step = Step.DECAYED_NESTEROV if group['nesterov'] else Step.DECAYED

    def rule(parameter: Tensor) -> Target | None:
        if momentum and decay:
            buffer = optimizer._decay_momentum(parameter, decay)
            return Target(parameter, step, buffer, (rate, momentum, decay))
        if momentum and 'decay_momentum' in optimizer.state.get(parameter, ()):
            return None  # a buffer of earlier steps fades, see ``DGCSGD._let_decay``
        return Target(parameter, Step.SCALED, None, scaled)

    return rule


def of_sgd(optimizer: Optimizer, group: Group) -> Rule:
    """Return the rule of the parameters of a group; it gives None in the first step, which makes
    the momentum buffer."""
    rate, momentum, decay = group['lr'], group['momentum'], group['weight_decay']
    settings = -rate, momentum, 1 - group['dampening'], decay
    step = Step.NESTEROV if group['nesterov'] else Step.MOMENTUM

    def rule(parameter: Tensor) -> Target | None:
        if not momentum and not decay:
            return Target(parameter, Step.SCALED, None, (1.0, -rate))
        if not momentum:
            return Target(parameter, Step.DECOUPLED, None, (-rate, decay))
        buffer = optimizer.state.get(parameter, {}).get('momentum_buffer')
        return None if buffer is None else Target(parameter, step, buffer, settings)

    return rule


RULES: dict[type[Optimizer], Callable[[Optimizer, Group], Rule]] = {
    DGCSGD: of_dgcsgd,
    SGD: of_sgd,
}

STEPS = {kind: unwrapped(kind.step) for kind in RULES}  # as they were before any program ran
