"""A DistributedDataParallel communication hook that averages gradients through a composition."""

# No annotations from __future__: DDP reads those of a hook, and does not understand strings.

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.amp.grad_scaler import GradScaler
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dgc.buckets import Bucket, part_of
from dgc.checks import check_part
from dgc.composition import Composition
from dgc.ddp import dense, gradients_of, named_parameters, owner
from dgc.engines import Engine, TorchEngine
from dgc.handshake import gather_states
from dgc.nonfinite import NonFiniteGradientError
from dgc.optim.closures import refuse_closures
from dgc.planner import Plan
from dgc.profile import Profile
from dgc.reducer import Reducer
from dgc.saved_state import join_ranks, labelled, share_of
from dgc.scaling import Scaling, check_given, scaling_of, with_remedy
from dgc.wiring import (
    check_dtypes,
    check_momentum,
    check_names,
    check_present_momentum,
    check_schedule,
    groups_of,
    trained,
    wire,
)

REMEDY = 'give it to CompressionState(…, optimizers=…)'


@dataclass
class Place:
    """A parameter in the composition's buckets.

    Attributes:
        index: Of its bucket.
        name: Of the parameter.
        view: Its part of the bucket's gradient, in the parameter's shape.
        used: Whether a backward pass has used it since the last exchange.
        base: What ``.grad`` held of earlier means when the first backward pass since the last
            exchange added to it; None for nothing.
    """

    index: int
    name: str
    view: Tensor
    used: bool = False
    base: Tensor | None = None


class Waiting(NamedTuple):
    """One of DDP's buckets in an exchange.

    Attributes:
        bucket: Whose buffer receives the mean gradients.
        gradients: See ``gradients_of``.
        future: Is completed with the buffer.
    """

    bucket: GradBucket
    gradients: list[tuple[Tensor, Tensor]]
    future: torch.futures.Future[Tensor]


class Groups:
    """The parameter groups of several optimizers, or of parameters whose optimizer is unknown.

    Args:
        optimizers: Whose groups these are.
        others: Groups beside them.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], others: Sequence[dict[str, Any]] = ()
    ) -> None:
        self._optimizers, self._others = optimizers, others

    @property
    def name(self) -> str:
        """The optimizers' classes."""
        return ' and '.join(type(each).__name__ for each in self._optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups that the optimizers have now; loading replaces them by new objects."""
        groups = [group for each in self._optimizers for group in each.param_groups]
        return [*self._others, *groups]


class CompressionState:
    """The state of ``compression_hook``, for DistributedDataParallel's ``register_comm_hook``.

        model = DistributedDataParallel(network)
        state = CompressionState(dgc.deep_gradient_compression(0.001))
        model.register_comm_hook(state, compression_hook)

    The ranks compare what they train, and buckets are planned, in the first backward pass that
    synchronizes. The process group is DDP's own, and parameters have the model's names. DDP gives
    neither to a hook: they are read from the model with which the state was registered. Where
    another hook calls this one with a state that DDP does not know, the group is ``process_group``,
    and parameters are named by their number in the order of the model.

    DDP rebuilds its buckets after the first iteration, so gradients are copied into the
    composition's own buckets, by parameter. Gradients may be accumulated with or without
    ``no_sync``. A parameter that no rank used since the last exchange keeps its residual and
    momentum, since DDP discards its mean.

    Pickling and copying keep settings, steps and memory (``state_dict()``), not the optimizers, the
    process group, the engine and the scaler. The copy is registered with a model of its own.

    Args:
        composition: The parts that process the gradients.
        optimizers: Those that update the model: one or several. By default they are recognized at
            their first step, and then checked: whether the momentum is applied twice or not at all.
            Nesterov's momentum in the memory, and memories that use other settings of the
            optimizer, need them from the start.
        steps_per_epoch: The number of optimizer steps in an epoch of the composition's schedule.
        process_group: Must have the ranks of DDP's; by default it is DDP's.
        engine: By default a TorchEngine over the process group.
        scaler: The ``torch.amp.GradScaler`` that scales the losses. Memories are in the units of
            the loss that is not scaled. Where any rank's gradient overflows, ``.grad`` becomes NaN
            on all ranks, whose scalers then skip the step, and the memory is as before the step.

    Attributes:
        reducer: Processes the buckets; None before the first pass.
        plan: The division of the parameters into buckets; None before the first pass.
        steps: The number of steps so far. Backward passes whose gradients are accumulated are one.
        scaler: As given; of a copy, to be set before the first pass.

    Raises:
        TypeError: Where a setting is of a wrong type.
        ValueError: Where settings contradict each other, or ``nonfinite`` is 'skip' and there is no
            scaler, which would skip the step.
    """

    reducer: Reducer
    plan: Plan

    def __init__(
        self,
        composition: Composition,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        steps_per_epoch: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        engine: Engine | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        check_part('composition', composition, Composition, 'dgc.deep_gradient_compression(0.001)')
        check_skipping(composition, scaling_of(scaler))
        check_schedule(composition, steps_per_epoch)
        self.composition = composition
        given = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers or ())
        for each in given:
            check_part('optimizers', each, Optimizer, 'torch.optim.SGD(model.parameters(), lr=0.1)')
            self._check(each)
        if not given:
            check_without_optimizer(composition, has_momenta=False)
        self.steps_per_epoch = steps_per_epoch or 1
        self._given_steps_per_epoch = steps_per_epoch
        self.steps = 0
        self._saved: dict[str, Any] | None = None  # to be restored in the first pass
        self._prepare(given, process_group, engine, scaler)

    def _prepare(
        self,
        optimizers: list[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        engine: Engine | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        """Set what belongs to a model and is not copied."""
        self._optimizers = optimizers
        self._process_group, self._engine = process_group, engine
        self.scaler = scaler
        self._scaling: Scaling | None = None
        self._is_skipped = False  # the last exchange, on all ranks
        self._is_wired = False
        self._places: dict[Tensor, Place] = {}
        self._missing: Counter[int] = Counter()
        self._waiting: list[Waiting] = []
        self._has_exchanged = False  # since this state was made
        self._stepped = False  # an optimizer has stepped since the last exchange
        self._has_stepped = False
        self._has_warned = False  # that gradients were discarded
        self._kinds: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._checked: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # for a scaler

    def __getstate__(self) -> dict[str, Any]:
        """Return settings, steps and memory."""
        return {
            'composition': self.composition,
            'steps_per_epoch': self._given_steps_per_epoch,
            'state': self.state_dict(),
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore them; the rest is set in the first pass."""
        self.composition = state['composition']
        self._given_steps_per_epoch = state['steps_per_epoch']
        self.steps_per_epoch = self._given_steps_per_epoch or 1
        self._saved = None
        self._prepare([])
        self.load_state_dict(state['state'])

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state of the composition's parts, and the number of steps."""
        if not self._is_wired:
            return {**(self._saved or {}), 'steps': self.steps}
        momenta = {
            member.name: [member.group.get('momentum', 0.0), member.group.get('nesterov', False)]
            for bucket in self.reducer.buckets
            for member in bucket.members
        }
        own = labelled(self.reducer.state_dict(), self.reducer.engine.rank)
        return {**own, 'momenta': momenta, 'steps': self.steps}

    def gather_state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, on every rank, for any later world size. A collective.

        Raises:
            ValueError: Before the first backward pass, in which the ranks meet.
        """
        if not self._is_wired:
            raise ValueError('gather_state_dict() needs the ranks, which meet in the first pass')
        device = self.reducer.buckets[0].device
        return join_ranks(gather_states(self.reducer.engine, self.state_dict(), device))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what ``state_dict()`` or ``gather_state_dict()`` returned.

        Before the first pass the memory is restored in that pass. Without ``optimizers`` the
        momentum until their first step is the saved one.

        Raises:
            ValueError: For the states of some of the ranks of another world size; before the first
                pass, in that pass.
        """
        self.steps = int(str(state_dict['steps']))
        has_memory = 'ranks' in state_dict or 'memory' in state_dict  # in earlier versions
        self._saved = dict(state_dict) if has_memory else None
        if self._is_wired:
            self._restore()
            self._saved = None

    def _restore(self) -> None:
        """Restore the memory of the state that was loaded, if any."""
        if self._saved is not None:
            engine = self.reducer.engine
            self.reducer.load_state_dict(share_of(self._saved, engine.rank, engine.size))

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Copy the gradients of one of DDP's buckets, and submit the buckets that are complete.

        Called by DDP, in the order of its buckets, when the gradients of ``bucket`` are complete.

        Returns:
            A future of the bucket's mean gradients, which the last bucket's call completes.

        Raises:
            ValueError: Where the bucket is of another model, or, in the first pass, the model and
                the settings do not fit.
            RuntimeError: Where gradients are accumulated without ``no_sync`` and the memory applies
                a momentum at each exchange.
        """
        if self._is_wired and not self._waiting:
            self._begin()
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._waiting.append(Waiting(bucket, gradients_of(bucket), future))
        if self._is_wired:
            self._collect(self._waiting[-1])
        if bucket.is_last():
            try:
                if not self._is_wired:
                    self._wire_first()
                self._finish()
            finally:
                self._waiting = []
        return future

    def _wire_first(self) -> None:
        """Prepare for the model whose first gradients have come, and collect them."""
        # DDP's first buckets go from the last parameter to the first.
        parameters = [p for each in reversed(self._waiting) for p in each.bucket.parameters()]
        model = owner(self)
        if model is None:
            named: list[tuple[str, Any]] = [
                (f'parameter {number}', p) for number, p in enumerate(parameters)
            ]
            group = self._process_group
        else:
            named = named_parameters(model)
            group = model.process_group
        self._wire(named, parameters, group)
        self._begin()
        for each in self._waiting:
            for parameter, gradient in each.gradients:
                # Only what was restored can be lost with a mean that DDP discards.
                used = self._saved is None or bool(gradient.count_nonzero())
                self._places[parameter].used = used
            self._collect(each)
        self._saved = None

    def _wire(
        self,
        named: Sequence[tuple[str, Parameter]],
        parameters: Sequence[Tensor],
        group: dist.ProcessGroup | None,
        profile: Callable[[], Profile] | None = None,
    ) -> None:
        """Compare the ranks, plan the buckets and allocate their storage. A collective.

        Args:
            named: The model's parameters.
            parameters: Those that DDP averages.
            group: DDP's process group; None for the default group.
            profile: See ``dgc.profile``.
        """
        groups = Groups(self._optimizers, self._unknown_groups(named, parameters))
        check_dtypes(trained(groups, named))
        self._scaling = scaling_of(self.scaler, [(n, p) for n, p, _ in trained(groups, named)])
        composition = check_skipping(self.composition, self._scaling)
        self.composition.rules.check_patterns([name for name, _ in named])
        engine = self._engine_for(group, named[0][1].device)
        self.reducer, self.plan = wire(
            groups, named, composition, engine, self._given_steps_per_epoch, profile=profile,
            agreed={'the optimizers': groups.name, 'the GradScaler': str(self._scaling)},
        )  # fmt: skip
        self.reducer.find_unused, self.reducer.scaling = True, self._scaling
        for index, bucket in enumerate(self.reducer.buckets):
            bucket.publishes = False
            for member in bucket.members:
                view = part_of(bucket.gradient, member.offset, member.parameter)
                self._places[member.parameter] = Place(index, member.name, view)
        self._check_all_updated(named, parameters)
        self._restore()
        self._watch_model()
        for each in self._optimizers:
            self._adopt(each)
        self._is_wired = True

    def _unknown_groups(
        self, named: Sequence[tuple[str, Parameter]], parameters: Sequence[Tensor]
    ) -> list[dict[str, Any]]:
        """Return a group for each parameter, where the optimizers are not known yet."""
        if self._optimizers:
            return []
        saved = {} if self._saved is None else self._saved.get('momenta', {})
        check_without_optimizer(self.composition, has_momenta=bool(saved))
        if self._saved is not None and not saved and self.composition.memory.holds_momentum:
            raise ValueError(
                'the state to restore does not say which momentum the optimizer has, and the '
                f'optimizer is not known before its first step: {REMEDY}'
            )
        averaged = set(parameters)
        momenta = [(p, *saved.get(n, (0.0, False))) for n, p in named if p in averaged]
        return [{'params': [p], 'momentum': m, 'nesterov': n} for p, m, n in momenta]

    def _engine_for(self, group: dist.ProcessGroup | None, device: torch.device) -> Engine:
        """Return an engine over DDP's process group.

        Raises:
            ValueError: Where the given process group, or engine, is of other ranks.
        """
        ranks_of = dist.get_process_group_ranks
        ours, theirs = ranks_of(self._process_group or group), ranks_of(group)
        if ours != theirs:
            raise ValueError(
                f'process_group of CompressionState has the ranks {ours}, and that of '
                f'DistributedDataParallel {theirs}: leave process_group out, or give both the same'
            )
        if self._engine is None:
            is_world = ours == ranks_of(None)
            self._engine = TorchEngine(device, group=None if is_world else group)
        if self._engine.size != len(theirs):
            raise ValueError(
                f'engine has {self._engine.size} ranks, and the process group of '
                f'DistributedDataParallel {len(theirs)}: leave engine out'
            )
        return self._engine

    def _check_all_updated(
        self, named: Sequence[tuple[str, Parameter]], parameters: Sequence[Tensor]
    ) -> None:
        """Raise ValueError where DDP averages parameters that no optimizer updates."""
        averaged = set(parameters)
        strangers = [
            name for name, p in named if p in averaged and p.numel() and p not in self._places
        ]
        if strangers:
            raise ValueError(
                f'the model trains {", ".join(strangers)}, which the optimizer does not update: '
                'give them to it, or freeze them before DistributedDataParallel'
            )

    def _watch_model(self) -> None:
        """Note which parameters a backward pass uses, and when an optimizer steps."""
        handles = []
        self._nodes = []  # autograd keeps the nodes of leaves only while something refers to them
        me = weakref.ref(self)
        for parameter, place in self._places.items():
            node = torch.autograd.graph.get_gradient_edge(parameter).node

            def accumulates(_: Any, parameter: Tensor = parameter, place: Place = place) -> None:
                state = me()
                if state is not None and not place.used:
                    place.used = True
                    if state._has_exchanged and parameter.grad is not None:
                        place.base = dense(parameter.grad.detach()).clone()

            handles.append(node.register_prehook(accumulates))
            self._nodes.append(node)

        def steps(optimizer: Optimizer, _: Any, __: Any) -> None:
            state = me()
            if state is not None:
                state._before_step(optimizer)

        handles.append(register_optimizer_step_pre_hook(steps))
        weakref.finalize(self, remove, handles)

    def _before_step(self, optimizer: Optimizer) -> None:
        """Note a step of an optimizer; check its settings at the first one."""
        is_new = optimizer not in self._kinds
        if is_new and self._is_part(optimizer):
            return
        if is_new and not self._places.keys().isdisjoint(groups_of(optimizer)):
            self._check(optimizer)
            self._check_late(optimizer)
            self._optimizers.append(optimizer)
            self._adopt(optimizer)
        if self._kinds.get(optimizer) and optimizer not in self._checked:
            check_given(optimizer, self.scaler, 'CompressionState(…, scaler=scaler)')
            self._checked.add(optimizer)
        if self._kinds.setdefault(optimizer, False):
            check_present_momentum(optimizer, self.composition)
            self._has_stepped = self._stepped = True

    def _is_part(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer steps for a known one, whose groups it has.

        MuonAndAdamW makes two such optimizers in each step.
        """
        known = {id(group) for each in self._optimizers for group in each.param_groups}
        return all(id(group) in known for group in optimizer.param_groups)

    def _check(self, optimizer: Optimizer) -> None:
        """Raise ValueError for an optimizer that this hook, or its composition, cannot serve."""
        reason = 'and DistributedDataParallel leaves each rank its own loss'
        refuse_closures(optimizer, reason, 'use DistributedOptimizer')
        check_momentum(optimizer, self.composition)

    def _adopt(self, optimizer: Optimizer) -> None:
        """Read the momentum from the groups of an optimizer, also of those that it loads."""
        self._kinds[optimizer] = True
        self._regroup()
        me = weakref.ref(self)

        def loaded(_: Optimizer) -> None:
            state = me()
            if state is not None:
                state._regroup()

        optimizer.register_load_state_dict_post_hook(loaded)

    def _regroup(self) -> None:
        """Set every member's group to the one that an optimizer has its parameter in now."""
        groups = groups_of(Groups(self._optimizers))
        for bucket in self.reducer.buckets:
            bucket.members = [
                m._replace(group=groups.get(m.parameter, m.group)) for m in bucket.members
            ]

    def _check_late(self, optimizer: Optimizer) -> None:
        """Raise ValueError where a first exchange without knowing this optimizer was wrong."""
        if not self.composition.memory.holds_momentum:
            return
        name = type(optimizer).__name__
        groups = groups_of(optimizer)
        members = [m for b in self.reducer.buckets for m in b.members if m.parameter in groups]
        late = [m for m in members if not m.group['nesterov']]  # restored ones may be in time
        if any(groups[member.parameter].get('nesterov') for member in late):
            raise ValueError(
                f'{name} has nesterov=True, which the memory applies from the first backward pass '
                f'on, and the optimizer is known from its first step on: {REMEDY}'
            )
        for bucket in self.reducer.buckets:
            of_bucket = [groups[m.parameter] for m in bucket.members if m.parameter in groups]
            momenta = {group.get('momentum', 0.0) for group in of_bucket}
            if len(momenta) > 1:
                raise ValueError(
                    f'{name} has groups of different momentum ({sorted(momenta)}), which need '
                    f'buckets of their own, and buckets were planned before its first step: '
                    f'{REMEDY}'
                )

    def _begin(self) -> None:
        """Prepare for the gradients of an exchange."""
        self.reducer.set_densities(self.steps, self.steps_per_epoch)
        if self._scaling is not None:
            self._scaling.begin()
        if self._stepped:
            self.reducer.begin_step()
        self._missing = Counter(place.index for place in self._places.values())
        for bucket in self.reducer.buckets:
            bucket.continued.clear()

    def _collect(self, waiting: Waiting) -> None:
        """Copy the gradients of one of DDP's buckets without earlier means, and submit the
        composition's buckets that are complete."""
        for parameter, gradient in waiting.gradients:
            place = self._places.get(parameter)
            if place is None:
                raise ValueError(
                    f'DistributedDataParallel averages a parameter {tuple(parameter.shape)} that '
                    'this CompressionState did not get in its first pass: make a state for each '
                    'model'
                )
            bucket = self.reducer.buckets[place.index]
            if not place.used:
                bucket.unused.add(place.name)
                # DDP's bucket has what ``.grad`` has, which is not of this exchange.
                place.base = None if parameter.grad is None else gradient.clone()
            else:
                bucket.unused.discard(place.name)
                if not self._stepped:
                    self._check_applied(place)
            if place.base is None:
                place.view.copy_(gradient)
            else:
                self._continue(bucket, place, place.base)
                place.view.copy_(gradient - place.base)
            if self._scaling is not None:
                place.view.mul_(self._scaling.inverse(place.view.device))
            self._missing[place.index] -= 1
            if not self._missing[place.index]:
                self.reducer.ready(place.index)

    def _continue(self, bucket: Bucket, place: Place, base: Tensor) -> None:
        """Note a gradient that adds to the mean of the last exchange, without a step since then."""
        if self._stepped or is_zeroed(place, base):
            return
        memory = self.composition.memory
        if not memory.continues:
            raise RuntimeError(
                f'gradients are accumulated over several backward passes, and '
                f'{type(memory).__name__} applies its momentum at each one: put all passes of a '
                'step but the last into `with model.no_sync():`'
            )
        bucket.continued.add(place.name)

    def _check_applied(self, place: Place) -> None:
        """Warn once where ``zero_grad()`` discarded the last mean of a parameter, after which no
        optimizer stepped."""
        if not self._has_stepped or self._has_warned or self._is_skipped:
            return
        has_mean = place.name not in self.reducer.unused
        if has_mean and (place.base is None or is_zeroed(place, place.base)):
            self._has_warned = True
            warnings.warn(
                'zero_grad() discarded the gradients of a backward pass without an optimizer step; '
                'what was not sent of them will be added to later ones: put a pass that is no '
                'part of a step into `with model.no_sync():`',
                stacklevel=2,
            )

    def _finish(self) -> None:
        """Wait for the mean gradients and copy them into DDP's buckets."""
        try:
            usable = self.reducer.synchronize(is_final=False)
        except NonFiniteGradientError as error:
            raise with_remedy(error, 'CompressionState(…, scaler=scaler)') from None
        for bucket, gradients, future in self._waiting:
            for parameter, gradient in gradients:
                place = self._places[parameter]
                if not usable:  # the scaler of every rank is to skip the step
                    place.view.fill_(torch.nan)
                    gradient.fill_(torch.nan)
                elif place.name in self.reducer.unused:
                    gradient.zero_()
                else:
                    gradient.copy_(place.view)
                if place.base is not None:
                    gradient.add_(place.base)
                if bucket.buffer().is_sparse:
                    bucket.set_buffer(gradient.to_sparse(bucket.buffer().sparse_dim()))
                place.used, place.base = False, None
            future.set_result(bucket.buffer())
        if not any(bucket.continued for bucket in self.reducer.buckets):
            self.steps += 1
        self._has_exchanged, self._stepped, self._is_skipped = True, False, not usable


def compression_hook(
    state: CompressionState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients through a composition, for DistributedDataParallel's
    ``register_comm_hook(state, compression_hook)``.

    Sparse gradients are averaged as dense ones, and their mean is sparse again.
    """
    return state.reduce(bucket)


class CompressionHook(CompressionState):
    """A CompressionState that prepares for its model, and registers with it, at once.

        model = DistributedDataParallel(network)
        optimizer = dgc.DGCSGD(network.parameters(), lr=0.1, momentum=0.9)
        hook = CompressionHook(model, optimizer, dgc.deep_gradient_compression(0.001))
        loss.backward(); optimizer.step()

    Settings that do not fit are refused here, not in the first backward pass. Save and restore
    ``state_dict()`` together with the model's and the optimizer's.

    Args:
        model: Its gradients are replaced by their mean over the ranks of its process group.
        optimizer: Updates the model's parameters; see DistributedOptimizer for its momentum.
        composition: The parts that process the gradients.
        engine: By default a TorchEngine over the model's process group.
        steps_per_epoch: The number of optimizer steps in an epoch of the composition's schedule.
        profile: Measures a step of ``model.module``, for planners that need times; see
            ``dgc.profile``.
        scaler: See CompressionState.

    Raises:
        ValueError: Where settings contradict each other, ``nonfinite`` is 'skip' without a scaler,
            or the model trains parameters that the optimizer does not update.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: Optimizer,
        composition: Composition,
        engine: Engine | None = None,
        steps_per_epoch: int | None = None,
        profile: Callable[[], Profile] | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        check_part('composition', composition, Composition, 'dgc.deep_gradient_compression(0.001)')
        check_part('optimizer', optimizer, Optimizer, 'torch.optim.SGD(model.parameters(), lr=0.1)')
        super().__init__(composition, optimizer, steps_per_epoch, engine=engine, scaler=scaler)
        if model.mixed_precision is not None:
            raise ValueError(
                'DistributedDataParallel(mixed_precision=…) has a communication hook of its own, '
                'and takes no other: use torch.autocast, or a model in bfloat16'
            )
        named = named_parameters(model)
        check_names(optimizer, named)
        parameters = [p for _, p in named if p.requires_grad]
        self._wire(named, parameters, model.process_group, profile)
        model.register_comm_hook(self, compression_hook)


def check_without_optimizer(composition: Composition, has_momenta: bool) -> None:
    """Raise ValueError where a memory needs the optimizer's settings before its first step.

    Args:
        composition: Of which this is the memory.
        has_momenta: Whether the optimizer's momentum is known.
    """
    memory = composition.memory
    reason = 'uses the learning rate' if memory.applies_rate else ''
    try:
        if not has_momenta:
            memory.check(0.0, False)
    except ValueError:
        reason = "uses the optimizer's momentum"
    if reason:
        raise ValueError(
            f'{type(memory).__name__} {reason} from the first backward pass on, and the optimizer '
            f'is known from its first step on: {REMEDY}'
        )


def check_skipping(composition: Composition, scaling: Scaling | None) -> Composition:
    """Return the composition, which skips steps where a scaler does; raise ValueError where it
    should without one."""
    if scaling is not None:
        return replace(composition, nonfinite='skip')
    if composition.nonfinite == 'skip':
        raise ValueError(
            "nonfinite='skip' needs DistributedOptimizer, or a GradScaler that skips the step "
            '(CompressionState(…, scaler=scaler)): DDP alone cannot skip a step'
        )
    return composition


def remove(handles: Sequence[RemovableHandle]) -> None:
    """Remove hooks."""
    for handle in handles:
        handle.remove()


def is_zeroed(place: Place, base: Tensor) -> bool:
    """Return whether ``.grad`` was zeroed in place since the last exchange.

    Args:
        place: Of the parameter; its view has that exchange's mean.
        base: What ``.grad`` held before this exchange.
    """
    return not base.count_nonzero() and bool(place.view.count_nonzero())
