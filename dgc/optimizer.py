"""Wrapper around a torch optimizer: the step is taken on the mean gradient of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.engines import Engine, create
from dgc.handover import offer, step
from dgc.handshake import broadcast_tensors, gather_states
from dgc.horovod_settings import check_settings
from dgc.optim import DGCSGD
from dgc.optim.closures import check_evaluations, mean_loss, needs_closure, refuse_closures
from dgc.ownership import Guard, check_free, release, take, weakly
from dgc.profile import Profile
from dgc.saved_state import (
    EMPTY,
    count_entries,
    has_memory,
    join_ranks,
    labelled,
    share_of,
    state_of_wrapped,
)
from dgc.scaling import check_step, scaling_of, wait_in
from dgc.sources import GradientHooks
from dgc.wiring import (
    check,
    check_batches,
    check_momentum_once,
    check_present_momentum,
    forget_memory,
    regroup,
    trained,
    wire,
    with_names,
)
from dgc.wrapper import Wrapper


class DistributedOptimizer(Wrapper):
    """``optimizer`` on the mean of all ranks' gradients, which a composition compresses.

        engine = dgc.create()
        optimizer = dgc.DGCSGD(model.parameters(), lr=0.1 * engine.size, momentum=0.9)
        optimizer = dgc.DistributedOptimizer(optimizer, model.named_parameters(), engine=engine)
        loss.backward()        # compresses and sends buckets as their gradients are computed
        optimizer.step()       # waits for the other ranks

    It shares ``param_groups`` and ``state`` with ``optimizer``, so learning rate schedulers work
    on it. At construction the ranks compare what they are about to train, and rank 0's parameters
    are broadcast.

    Between ``backward()`` and ``step()`` the engine's thread reads the gradients, and ``.grad`` is
    this rank's own; ``synchronize()`` overwrites it with the mean. Code that changes gradients
    (clipping), and calls of your own on the engine, come after it. A change before it raises
    RuntimeError where the version of the tensor shows it. A write through ``.data`` does not show:
    whether it is sent is undefined, and the ranks' results are the same in any case. Local clipping
    is ``gradient_clipping``. A GradScaler is given as ``scaler`` (docs/mixed-precision.md).

    A step can be given up with ``discard()`` or ``zero_grad()``, and ``no_sync()`` is for backward
    passes that are no part of a step.

    A sparse gradient, as of ``Embedding(sparse=True)``, is averaged as a dense one, and its mean is
    sparse again, also on ranks that did not use the parameter in the step. Without ``find_unused``
    these go by their own last gradient, and a rank that has had none gets a dense mean.

    The settings of Horovod's DistributedOptimizer are understood: those that ask for what is done
    here anyway are accepted, and others are refused with what to use instead.

    Args:
        optimizer: Applies the mean gradient: DGCSGD where the memory holds the momentum. Only the
            wrapper may call its ``step()``.
        named_parameters: Of the whole model; all that ``optimizer`` updates must be among them. By
            default those of ``optimizer``, named by their place in its groups; rank 0's values of
            other parameters are then not broadcast.
        composition: By default Deep Gradient Compression at a density of 0.1 %.
        engine: By default that of ``dgc.create()``. Of several optimizers on one engine, each one
            but the first uses a duplicate of it; all ranks make them, and call their ``step()``, in
            the same order.
        batches_per_step: Backward passes whose gradients are summed before they are sent.
        steps_per_epoch: The number of optimizer steps in an epoch of the composition's schedule.
        configuration: Any text that must be the same on all ranks.
        profile: Measures a step of the model, for planners that need times; see ``dgc.profile``.
        find_unused: Whether a parameter whose ``.grad`` is None on all ranks keeps residual and
            momentum, and is not updated, as in torch. Else zeros are applied to it, so that weight
            decay and momentum move it.
        scaler: The ``torch.amp.GradScaler`` that scales the losses, for PyTorch's documented loops:
            its ``unscale_`` and ``step`` wait for the mean gradients of this optimizer. Memories
            are in the units of the loss that is not scaled. A step in which any rank's gradient
            overflows is skipped by the scalers of all ranks and leaves no trace: the composition's
            ``nonfinite`` becomes 'skip'.

    Attributes:
        plan: The division of the parameters into buckets.
        engine: The one that carries this optimizer's buckets: ``engine`` or a duplicate.
        scaler: As given.
        scaling: The scale of this step's gradients; None without a scaler, or with a disabled one.

    Raises:
        TypeError: Where a setting is of a wrong type.
        ValueError: Where settings contradict each other, parameters are of a type that cannot be
            averaged, such as complex64, or another wrapper has them.
        HandshakeError: Where ranks differ.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]] | None = None,
        composition: Composition | None = None,
        engine: Engine | None = None,
        batches_per_step: int = 1,
        steps_per_epoch: int | None = None,
        configuration: str = '',
        profile: Callable[[], Profile] | None = None,
        find_unused: bool = True,
        scaler: GradScaler | None = None,
        **horovod: Any,
    ) -> None:
        batches_per_step = horovod.pop('backward_passes_per_step', batches_per_step)
        check_settings(horovod)
        composition = deep_gradient_compression() if composition is None else composition
        named = with_names(optimizer, named_parameters)
        check_batches(batches_per_step)
        check(optimizer, named, composition, steps_per_epoch)
        self.scaler = scaler
        parameters = [(name, parameter) for name, parameter, _ in trained(optimizer, named)]
        self.scaling = scaling_of(scaler, parameters)
        if self.scaling is not None:
            remedy = 'leave scaler out, and compute in bfloat16 by torch.autocast'
            refuse_closures(optimizer, 'which a GradScaler does not do', remedy)
            composition = replace(composition, nonfinite='skip')
        check_evaluations(optimizer, composition)
        check_free(parameters)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer = optimizer
        self._use(self.optimizer)
        engine = engine or create(device=named[0][1].device)
        self.reducer, self.plan = wire(
            optimizer, named, composition, engine, steps_per_epoch, configuration, profile,
            agreed={'find_unused': str(find_unused), 'the GradScaler': str(self.scaling)},
        )  # fmt: skip
        self.engine = self.reducer.engine
        self.reducer.find_unused = find_unused
        self.reducer.scaling = self.scaling
        broadcast_tensors(self.engine, [parameter for _, parameter in named])
        self.batches_per_step = batches_per_step
        self.steps_per_epoch = steps_per_epoch or 1
        self.steps = 0
        names = {parameter: name for name, parameter in named}
        self.source = GradientHooks(self.reducer, optimizer, names, batches_per_step, self.scaling)
        if scaler is not None:
            wait_in(scaler, self)
        self._synchronized: bool | None = None
        self._needs_synchronized = False
        self._needs_closure = needs_closure(optimizer)
        self._is_detached = False
        self._handle = optimizer.register_load_state_dict_post_hook(weakly(self._regroup))
        self._guard = Guard(optimizer, self)
        take(self, self._parameters)
        # Views of a bucket have the parameters' logical order. Autograd warns where a parameter's
        # memory is in another, such as channels_last.
        warnings.filterwarnings('ignore', 'grad and param do not obey the gradient layout')
        self._begin_step()
        self.zero_grad()

    def _regroup(self) -> None:
        """Use the wrapped optimizer's groups and state, which loading replaces by new objects."""
        self._use(self.optimizer)
        regroup(self.reducer.buckets, self.optimizer)

    def detach(self) -> None:
        """Remove the hooks from the parameters, to wrap them in another optimizer. A second call
        does nothing.

        Raises:
            RuntimeError: Within a step with a GradScaler, whose gradients are divided in part.
        """
        if self._is_detached:
            return
        if self.scaling is not None and self.source.has_begun and not self.reducer.has_failed:
            raise RuntimeError(
                'detach() between backward() and scaler.step(optimizer), where gradients are '
                'divided by the scale in part: call scaler.step(optimizer) before'
            )
        self._is_detached = True
        self.source.detach()
        self.reducer.release()
        self._handle.remove()
        self._guard.remove()
        forget_memory(self.optimizer)
        release(self, self._parameters)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set ``batches_per_step`` from the next step on, as in Horovod.

        Raises:
            RuntimeError: After the first backward pass of a step.
        """
        check_batches(passes)
        if self.source.has_begun:
            raise RuntimeError(
                'set_backward_passes_per_step() within a step: call it before the first backward '
                'pass, or after step()'
            )
        self.batches_per_step = passes
        self.source.expect(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Release the gradients, or zero them in place.

        After ``backward()`` and without ``step()``, all ranks skip the step: ``discard()`` and
        ``step()`` in one. The other ranks must call either.

        Raises:
            RuntimeError: There, without ``nonfinite='skip'``.
        """
        if self.source.has_begun:
            if self.source.has_failed or self.reducer.has_failed:
                raise RuntimeError(
                    'zero_grad() after an error in this step would lose gradients: call '
                    'load_state_dict() first'
                )
            if self.composition.nonfinite != 'skip':
                raise RuntimeError(
                    'zero_grad() between backward() and step() would lose gradients, which are '
                    'being sent: step() was not called. To discard a step on all ranks with '
                    "zero_grad(), set nonfinite='skip' in the composition; a backward pass that is "
                    'no part of a step goes into `with optimizer.no_sync():`'
                )
            if self.scaling is not None:
                raise RuntimeError(
                    'zero_grad() between backward() and step() would let the scales of the ranks '
                    'differ, since the others back off: to discard a step with a GradScaler, call '
                    'optimizer.discard(), and go on with scaler.step(optimizer), scaler.update(); '
                    'a backward pass that is no part of a step goes into '
                    '`with optimizer.no_sync():`'
                )
            self.discard()
            self.synchronize()
            self._end_step()
        for bucket in self.reducer.buckets:
            bucket.zero(set_to_none)

    def _begin_step(self) -> None:
        self.reducer.set_densities(self.steps, self.steps_per_epoch)
        self.source.begin()
        self._synchronized = None
        # A GradScaler looks at dense gradients before each step.
        if self.scaling is None and not self._needs_closure:
            offer(self.buckets, self.optimizer, self._guard.hook)

    def synchronize(self) -> bool:
        """Wait until every ``.grad`` holds the mean over the ranks; ``step()`` will not repeat it.

        Returns:
            False where all ranks skip this step.
        """
        usable = self._exchange()
        for bucket in self.buckets:
            if usable and bucket.mean is not None:
                bucket.write(self.reducer.unused)
        return usable

    def _exchange(self) -> bool:
        """Wait for the means; leave sparse ones that ``step()`` may apply as they are.

        Returns:
            False where all ranks skip this step.
        """
        if self._synchronized is None:
            self.source.finish()
            is_discarded = self.reducer.discards
            try:
                usable = self.reducer.synchronize()
            except Exception:
                if self.composition.nonfinite == 'skip':  # all state is as before the step
                    self._begin_step()
                    self.zero_grad()
                raise
            if not is_discarded:
                self.source.check_result()
            for bucket in self.reducer.buckets:
                if self.scaling is not None and not usable:
                    bucket.spoil()  # the scaler of every rank is to skip the step
                elif is_discarded:
                    bucket.zero()
            self._synchronized = usable
        return self._synchronized

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context in which ``step()`` refuses to wait for other ranks, as in Horovod.

        It need not be used here, since ``step()`` does not repeat ``synchronize()``.

        Raises:
            RuntimeError: In ``step()``, without ``synchronize()`` before it.
        """
        self._needs_synchronized = True
        try:
            yield
        finally:
            self._needs_synchronized = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the mean gradients and apply them.

        Where the optimizer evaluates its closure several times (LBFGS), each evaluation is an
        exchange of its own, and gives the mean of the ranks' losses, by which all ranks take the
        same decisions. They are one step of the schedule.

        Returns:
            The closure's loss.

        Raises:
            TypeError: Without a closure where the optimizer needs one.
            ValueError: Where a scheduler has set a momentum that would be applied twice, or not at
                all.
        """
        check_step(self, closure)
        if self.scaling is not None and self._synchronized is None:
            raise RuntimeError(
                'these gradients were not divided by the scale, since scaler.unscale_() was called '
                'before load_state_dict(): call scaler.update() after loading'
            )
        check_present_momentum(self.optimizer, self.composition)
        if self._needs_closure:
            return self._step_by_evaluations(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_made_by_loop()
        is_own = getattr(self.synchronize, '__func__', None) is DistributedOptimizer.synchronize
        is_published = self._synchronized is not None or not is_own
        if self._exchange() if is_own else self.synchronize():
            with self._guard.opened(), self.reducer.applying():
                if is_published:  # the program may have changed the means since
                    self.optimizer.step()
                else:
                    step(self.buckets, self.optimizer, self._guard.hook, self.reducer.unused)
        self._end_step()
        return loss

    def _step_by_evaluations(self, closure: Callable[[], Any] | None) -> Any:
        """Step an optimizer that evaluates its closure several times."""
        name = type(self.optimizer).__name__
        if closure is None:
            raise TypeError(f'step() of {name} needs a closure that computes loss and gradients')
        if self._needs_synchronized:
            raise RuntimeError(
                f'step() of {name} within skip_synchronize(): each evaluation of its closure is an '
                'exchange, so leave skip_synchronize() out'
            )
        with self._guard.opened():
            loss = self.optimizer.step(partial(self._evaluate, closure))
        self._end_step()
        return loss

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Return the mean loss of an evaluation, and leave its mean gradients in ``.grad``."""
        loss = closure()
        self.synchronize()
        self._begin_step()
        return mean_loss(self.engine, loss, self.buckets[0].device)

    def _check_made_by_loop(self) -> None:
        """Raise RuntimeError for a step that is not one of the training loop.

        ``torch.distributed.checkpoint.state_dict`` and ``hvd.broadcast_optimizer_state`` take a
        step to create state, the latter on some ranks only. The former's, at a rate of 0, would
        send residuals and multiply them by 0.
        """
        if self._synchronized is not None:
            return
        if self._needs_synchronized:
            raise RuntimeError(
                "step() within skip_synchronize() would apply this rank's own gradients: call "
                'synchronize() before it'
            )
        if self.source.has_begun:
            return
        parameters = [p for p in self._parameters if p.requires_grad]
        gradients = [p.grad for p in parameters if p.grad is not None]
        stored = [each._values() if each.is_sparse else each for each in gradients]
        if len(gradients) < len(parameters) or self.state or any(map(torch.any, stored)):
            return
        if not any(float(group.get('lr', 1)) for group in self.param_groups):
            raise RuntimeError(
                'step() at a learning rate of 0, without backward(), would send residuals and lose '
                'them. Where torch.distributed.checkpoint.state_dict made this call, to create the '
                "optimizer's state: give DistributedOptimizer itself to "
                "torch.distributed.checkpoint.save(), as {'optimizer': optimizer}"
            )
        if not self.steps:
            raise RuntimeError(
                'step() before any backward(), with gradients of zeros, would wait for ranks that '
                'have state already. Where hvd.broadcast_optimizer_state() made this call, to '
                "create the optimizer's state: call optimizer.broadcast_state() in its place"
            )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler calls ``step()`` whatever it finds in ``.grad``: one that was not
        given, so that ``step()`` refuses it on all ranks, also where one has an overflow."""
        return self.scaling is None

    def end_skipped_step(self) -> None:
        """End a step that the scaler has skipped after ``synchronize()``. Called by the scaler."""
        if self._synchronized is not None:
            self._end_step()

    def _end_step(self) -> None:
        self.steps += 1
        self._begin_step()

    def discard(self) -> None:
        """Make ``step()`` skip this step on all ranks, and leave parameters and memories as they
        were before it. Any rank may call this, before its ``step()``.

        Raises:
            RuntimeError: Without ``nonfinite='skip'``, or after ``synchronize()``.
        """
        if self._synchronized is not None:
            raise RuntimeError(
                'discard() after synchronize() is too late, since the other ranks may have taken '
                'the step: call it before'
            )
        self.reducer.discard()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context whose backward passes are no part of a step, and send nothing.

        As in DistributedDataParallel, ``.grad`` accumulates on this rank, and goes into the next
        step unless ``zero_grad()`` releases it.
        """
        with self.source.paused():
            yield

    @property
    def _parameters(self) -> list[Parameter]:
        """Those that are trained."""
        return [member.parameter for bucket in self.buckets for member in bucket.members]

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        """Return an empty context: the model always holds the parameters common to all ranks."""
        yield

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, and this rank's of the composition's parts.

        A plain optimizer loads it too, and leaves the memory out.

        Returns:
            'state' and 'param_groups' of the wrapped optimizer, 'steps', 'entries' (their number in
            'state'), and 'ranks': this rank's residuals, under a key with rank and world size. The
            other ranks' are not in it: save one file per rank, or ``gather_state_dict()``.
        """
        wrapped = self.optimizer.state_dict()
        return {
            **wrapped,
            **labelled(self.reducer.state_dict(), self.engine.rank),
            'steps': self.steps,
            'entries': count_entries(wrapped['state']),
        }

    def gather_state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, for one file and any later world size. A collective.

        Each rank receives the residuals of all ranks, on the CPU: for P ranks, P times the bytes
        of its own.

        Returns:
            As ``state_dict()``, with all ranks in 'ranks'; the same on every rank. Of a DGCSGD, it
            has SGD's ``momentum_buffer`` in 'state' as well, computed from the momentum of weight
            decay and the mean of the ranks' momenta, so that ``torch.optim.SGD`` goes on with it.
        """
        own = self.state_dict()
        ranks = gather_states(self.engine, {'ranks': own['ranks']}, self.buckets[0].device)
        state = self._with_momentum(own['state'])
        return {**own, **join_ranks(ranks), 'state': state, 'entries': count_entries(state)}

    def broadcast_state(self, root: int = 0) -> None:
        """Give all ranks the wrapped optimizer's state and settings, and the step, of one rank.
        A collective, in the place of ``hvd.broadcast_optimizer_state``.

        For programs in which ``root`` alone loads a checkpoint. Memories stay, except on ranks that
        are at another step than ``root``: these have not loaded what it has, and load its state.
        The scale of a GradScaler becomes that of ``root`` too.
        """
        ours: dict[str, Any] = {'steps': self.steps}
        if self.engine.rank == root:
            ours = self.state_dict()
            if self.scaling is not None:
                ours['scaler'] = self.scaling.scaler.state_dict()
        theirs = gather_states(self.engine, ours, self.buckets[0].device)[root]
        if self.steps != theirs['steps']:
            self.load_state_dict(theirs)
        elif self.engine.rank != root:
            self.optimizer.load_state_dict(state_of_wrapped(theirs))
        if self.scaling is not None and self.engine.rank != root:
            self.scaling.scaler.load_state_dict(theirs['scaler'])

    def _with_momentum(self, state: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Add to DGCSGD's state the ``momentum_buffer`` of SGD. A collective."""
        if not isinstance(self.optimizer, DGCSGD):
            return state
        parameters = [p for group in self.param_groups for p in group['params']]
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        state = {number: dict(entries) for number, entries in state.items()}
        for bucket in self.buckets:
            momentum = bucket.buffers.get('momentum')
            if momentum is None or not bucket.momentum:
                continue
            total = self.engine.all_reduce(momentum.to(torch.float32, copy=True))
            mean = total.div_(self.engine.size)
            mean = self.composition.transform.inverse(mean, bucket.spec)
            if bucket.nesterov:  # the memory's u is m times SGD's buffer
                mean.div_(bucket.momentum)
            for member, (_, view) in zip(bucket.members, bucket.views(mean), strict=True):
                entries = state.setdefault(numbers[member.parameter], {})
                decay = entries.setdefault('decay_momentum', torch.zeros_like(member.parameter))
                entries['momentum_buffer'] = decay + view.to(decay.dtype)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict()`` or ``gather_state_dict()`` returned.

        The division into buckets may be another; so may the world size, for the latter. The state
        of a plain optimizer is loaded as well: the memory then starts empty, and the composition's
        schedule at step 0, which rank 0 says in a warning.

        Raises:
            ValueError: Where this composition has no memory for a saved residual or momentum, or
                would take it for something else; where the saved states are those of some of the
                ranks of another world size; where momentum would be applied twice, or not at all.
        """
        wrapped = state_of_wrapped(state_dict)
        rank, size = self.engine.rank, self.engine.size
        is_plain = not has_memory(state_dict)
        share = EMPTY if is_plain else share_of(state_dict, rank, size)
        check_momentum_once(self.optimizer, wrapped['param_groups'], self.composition)
        self.reducer.load_state_dict(share)
        self.optimizer.load_state_dict(wrapped)
        if is_plain and rank == 0:
            warnings.warn(
                "the state has no memory of this wrapper's: residuals start empty, and the "
                "composition's schedule at step 0",
                stacklevel=2,
            )
        self.steps = int(state_dict.get('steps', 0))
        self._begin_step()
        self.zero_grad()
