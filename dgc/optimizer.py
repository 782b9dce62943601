"""The optimizer that people wrap theirs in: gradient hooks, and a step that waits for the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dgc.buckets import Bucket, Member
from dgc.composition import Composition, about, deep_gradient_compression
from dgc.engines import Engine, create
from dgc.handshake import broadcast_tensors, describe, shake_hands
from dgc.optim.sgd import DGCSGD
from dgc.planner import Named, Plan
from dgc.profile import Profile
from dgc.reducer import Progress, Reducer


class DistributedOptimizer(Optimizer):
    """``optimizer`` on the mean of all workers' gradients, which a composition brings together.

        engine = dgc.create()
        optimizer = dgc.DGCSGD(model.parameters(), lr=0.1 * engine.size, momentum=0.9)
        optimizer = dgc.DistributedOptimizer(optimizer, model.named_parameters(), engine=engine)
        loss.backward()        # buckets are compressed and sent as their gradients appear
        optimizer.step()       # waits for what is left

    It shares ``param_groups`` and ``state`` with ``optimizer``, so learning rate schedulers work
    on it. At construction the ranks shake hands, and rank 0's parameters are broadcast.

    Between ``backward()`` and ``step()`` gradients are on their way, and so are the engine's calls.
    What looks at gradients or changes them (clipping, a GradScaler), and calls of your own on the
    engine, come after ``synchronize()``; what clips before, is ``gradient_clipping``.

    optimizer: what applies the mean gradient: DGCSGD where the memory holds the momentum.
    named_parameters: of the whole model; all that ``optimizer`` updates must be among them.
    composition: by default Deep Gradient Compression at 0.1 %.
    engine: by default the one that fits the launcher.
    batches_per_step: backward passes whose gradients are accumulated before they are sent.
    steps_per_epoch: what the composition's schedule counts an epoch as.
    configuration: any text that must be the same on all ranks.
    profile: measures a step of the model, for planners that go by times; see dgc.profile.

    plan: which parameters travel together.

    Raises ValueError for settings that do not fit together, HandshakeError where ranks differ.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        composition: Composition | None = None,
        engine: Engine | None = None,
        batches_per_step: int = 1,
        steps_per_epoch: int | None = None,
        configuration: str = '',
        profile: Callable[[], Profile] | None = None,
    ) -> None:
        composition = composition or deep_gradient_compression()
        named = list(named_parameters)
        check(optimizer, named, composition, steps_per_epoch)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer = optimizer
        self._share()
        self.engine = engine or create(device=named[0][1].device)
        aspects = describe(named, configuration) | about(composition, steps_per_epoch)
        shake_hands(self.engine, aspects, named[0][1].device)
        broadcast_tensors(self.engine, [parameter for _, parameter in named])
        buckets, self.plan = divide(optimizer, named, composition, self.engine, profile)
        self.batches_per_step = batches_per_step
        self.steps_per_epoch = steps_per_epoch or 1
        self.steps = 0
        self.reducer = Reducer(buckets, composition, self.engine)
        self._names = {parameter: name for name, parameter in named}
        self._passes: dict[Parameter, int] = {}
        self._missing: list[int] = []
        self._synchronized: bool | None = None
        self._handles: list[RemovableHandle] = []
        self._register_hooks()
        regroup = optimizer.register_load_state_dict_post_hook(lambda _: self._regroup())
        self._handles.append(regroup)
        # The views have the parameters' logical order, which is what travels. Autograd remarks on
        # it where a parameter's memory is in another, such as channels_last.
        warnings.filterwarnings('ignore', 'grad and param do not obey the gradient layout')
        self._begin_step()
        self.zero_grad()

    def _share(self) -> None:
        self.param_groups = self.optimizer.param_groups
        self.state = self.optimizer.state

    def _regroup(self) -> None:
        """The wrapped optimizer has groups and a state of other objects."""
        self._share()
        regroup(self.reducer.buckets, self.optimizer)

    def _register_hooks(self) -> None:
        for index, bucket in enumerate(self.reducer.buckets):
            for member in bucket.members:
                hook = partial(self._accumulated, index, member)
                handle = member.parameter.register_post_accumulate_grad_hook(hook)
                self._handles.append(handle)

    def detach(self) -> None:
        """Take the hooks off the parameters, to wrap them in another optimizer."""
        while self._handles:
            self._handles.pop().remove()

    def _accumulated(self, index: int, member: Member, parameter: Tensor) -> None:
        """One gradient of one backward pass has been added to its bucket."""
        if self._synchronized is not None:
            raise RuntimeError(
                f'gradient of {member.name} between synchronize() and step(): call step() first'
            )
        self.reducer.buckets[index].collect(member)
        self._passes[member.parameter] += 1
        if self._passes[member.parameter] > self.batches_per_step:
            raise RuntimeError(
                f'{member.name} got {self._passes[member.parameter]} gradients in one step, '
                f'batches_per_step is {self.batches_per_step}'
            )
        if self._passes[member.parameter] == self.batches_per_step:
            self._missing[index] -= 1
            if not self._missing[index]:
                self.reducer.ready(index)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or zero them in place. Without them, autograd need not add to
        anything: what it computes is the gradient."""
        if self._synchronized is None and any(self._passes.values()):
            raise RuntimeError(
                'zero_grad() between backward() and step() would lose gradients; '
                'after an error, load_state_dict() first'
            )
        for bucket in self.reducer.buckets:
            bucket.zero(set_to_none)

    def _begin_step(self) -> None:
        buckets = self.reducer.buckets
        self.reducer.set_ratios(self.steps, self.steps_per_epoch)
        self._passes = {member.parameter: 0 for bucket in buckets for member in bucket.members}
        self._missing = [len(bucket.members) for bucket in buckets]
        self._synchronized = None

    def synchronize(self) -> bool:
        """Wait until every ``.grad`` holds the mean over the workers; ``step()`` will not do it
        again. Returns False where all workers leave this step out."""
        if self._synchronized is None:
            self._check_trained()
            for bucket in self.reducer.buckets:
                for member in bucket.members:
                    if not self._passes[member.parameter]:
                        bucket.collect(member)
            usable = self.reducer.synchronize()
            self._check_untouched()  # now that no other thread moves gradients
            self._synchronized = usable
        return self._synchronized

    def _check_trained(self) -> None:
        """What is trained now has to be what was when it was wrapped."""
        updated = groups_of(self.optimizer)
        new = [
            self._names.get(p, f'a parameter {tuple(p.shape)} that was added')
            for p in updated
            if p.grad is not None and p.numel() and p not in self._passes
        ]
        if new:
            raise RuntimeError(
                f'{", ".join(new)} was not trained when the optimizer was wrapped, so its gradient '
                "is this worker's alone: detach() and wrap it again after unfreezing or adding"
            )
        frozen = [self._names[p] for p in self._passes if not p.requires_grad]
        if frozen:
            raise RuntimeError(
                f'{", ".join(frozen)} was trained when the optimizer was wrapped, and what is kept '
                'back of it would still move it: detach() and wrap it again after freezing'
            )

    def _check_untouched(self) -> None:
        touched = [name for bucket in self.reducer.buckets for name in bucket.touched()]
        if touched:
            raise RuntimeError(
                f'the gradient of {", ".join(touched)} was changed between backward() and step(), '
                'while it was being sent: call synchronize() first, or clip with '
                'gradient_clipping'
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the mean gradients and apply them; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.synchronize():
            self.optimizer.step()
        self.steps += 1
        self._begin_step()
        return loss

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The parameters that travel together."""
        return self.reducer.buckets

    @property
    def composition(self) -> Composition:
        """What the gradients go through."""
        return self.reducer.composition

    @property
    def progress(self) -> Progress:
        """What this worker has done so far."""
        return self.reducer.progress

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, and everything that this worker keeps back."""
        return {
            'optimizer': self.optimizer.state_dict(),
            **self.reducer.state_dict(),
            'steps': self.steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict()``, however the parameters were grouped then.

        Raises ValueError where something that was kept back has no place here and would be lost.
        """
        self.reducer.load_state_dict(state_dict)
        self.optimizer.load_state_dict(state_dict['optimizer'])
        self.steps = int(state_dict['steps'])
        self._begin_step()
        self.zero_grad()


def groups_of(optimizer: Optimizer) -> dict[Parameter, dict[str, Any]]:
    """The parameters that ``optimizer`` updates, each with its group."""
    return {p: group for group in optimizer.param_groups for p in group['params']}


def regroup(buckets: Sequence[Bucket], optimizer: Optimizer) -> None:
    """Every member is in the group that ``optimizer`` has its parameter in now."""
    groups = groups_of(optimizer)
    for bucket in buckets:
        bucket.members = [m._replace(group=groups[m.parameter]) for m in bucket.members]


def trained(optimizer: Optimizer, named: Iterable[tuple[str, Parameter]]) -> list[Named]:
    """Those of ``named`` that ``optimizer`` trains, each with its group."""
    groups = groups_of(optimizer)
    return [(name, p, groups[p]) for name, p in named if p.requires_grad and p in groups]


def check(
    optimizer: Optimizer,
    named: list[tuple[str, Parameter]],
    composition: Composition,
    steps_per_epoch: int | None,
) -> None:
    """Raise ValueError for settings that do not fit together."""
    check_names(optimizer, named)
    check_momentum(optimizer, composition)
    schedule = composition.schedule
    if schedule.warmup_epochs and not (steps_per_epoch or schedule.stage_steps):
        raise ValueError('a warm-up in epochs needs steps_per_epoch')


def divide(
    optimizer: Optimizer,
    named: list[tuple[str, Parameter]],
    composition: Composition,
    engine: Engine,
    profile: Callable[[], Profile] | None = None,
) -> tuple[list[Bucket], Plan]:
    """The composition's buckets of those parameters that ``optimizer`` trains.

    A collective. Raises HandshakeError where the ranks do not divide them alike.
    """
    parameters = trained(optimizer, named)
    # Before it is asked what a bucket costs: that may depend on the workers of a machine.
    composition.exchange.check(engine, named[0][1].device)
    rules, schedule = composition.rules, composition.schedule
    planner = composition.planner.informed(composition, engine, parameters, profile)
    buckets = planner.plan(parameters, rules, schedule, composition.memory.buffers)
    foreseen = planner.foreseen(buckets, parameters, rules, schedule)
    plan = Plan.of(buckets, rules, schedule, foreseen, planner.timing)
    shake_hands(engine, {'the division into buckets': repr(plan.buckets)}, named[0][1].device)
    return buckets, plan


def check_names(optimizer: Optimizer, named: list[tuple[str, Parameter]]) -> None:
    """Raise ValueError where a name is missing or used twice: state is kept by name."""
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f'named_parameters has two of {", ".join(twice)}')
    known = {parameter: name for name, parameter in reversed(named)}
    aliases = [f'{known[p]} and {name}' for name, p in named if known[p] != name]
    if aliases:
        raise ValueError(f'named_parameters has one parameter as {", ".join(aliases)}')
    missing = [
        f'parameter {index} {tuple(parameter.shape)} of group {number}'
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group['params'])
        if parameter not in known
    ]
    if missing:
        raise ValueError(f'named_parameters lacks what the optimizer updates: {", ".join(missing)}')


def check_momentum(optimizer: Optimizer, composition: Composition) -> None:
    """Raise ValueError where momentum would be applied twice, or not at all."""
    has_momentum = any(group.get('momentum', 0) for group in optimizer.param_groups)
    memory = type(composition.memory).__name__
    for group in optimizer.param_groups:
        composition.memory.check(group.get('momentum', 0.0), group.get('nesterov', False))
    if composition.memory.holds_momentum and not isinstance(optimizer, DGCSGD) and has_momentum:
        raise ValueError(
            f'{memory} holds the momentum and {type(optimizer).__name__} would apply it again: '
            'use dgc.DGCSGD, or momentum=0'
        )
    if isinstance(optimizer, DGCSGD) and has_momentum and not composition.memory.holds_momentum:
        raise ValueError(
            f'DGCSGD leaves momentum to the memory and {memory} has none: use torch.optim.SGD, '
            'or MomentumCorrection'
        )
    if composition.loses_gradient:
        told = f'{memory} loses whatever is not sent: use Residual or MomentumCorrection'
        if composition.exchange.loses:
            exchange = type(composition.exchange).__name__
            told = f'{exchange} loses part of what it cuts: use GlobalResiduals'
        warnings.warn(told, stacklevel=3)
