"""Sources of contributions: gradients as autograd completes them, or the movement of local steps.

A source writes a rank's contribution into the ``.grad`` of the parameters of each bucket and
may submit the bucket; the reducer writes the result to the same place. The optimizer that owns the
source applies it.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dgc.buckets import Bucket, Member
from dgc.checks import check_part
from dgc.optim import DGCSGD, OneBitAdam
from dgc.reducer import Reducer
from dgc.scaling import Scaling
from dgc.spans import Phase
from dgc.wiring import groups_of


class Source(ABC):
    """Provides a rank's contribution to each step of a reducer."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare for the next step."""

    @abstractmethod
    def finish(self) -> None:
        """Provide the remaining contributions; called before ``reducer.synchronize()``.

        Raises:
            RuntimeError: Where the parameters that are trained have changed.
        """

    def check_result(self) -> None:
        """Raise RuntimeError where the training loop wrote to a contribution while it was sent."""

    def detach(self) -> None:
        """Release the parameters, so that another source may use them."""


class GradientHooks(Source):
    """Gradients; each bucket is submitted during the backward pass, as soon as it is complete.

    Args:
        reducer: Whose buckets are filled.
        optimizer: Whose parameters must stay those of the buckets.
        names: Parameter → name, of the whole model.
        batches_per_step: Backward passes whose gradients are accumulated before they are sent.
        scaling: The scale by which gradients are divided; None where losses are not scaled.
    """

    def __init__(
        self,
        reducer: Reducer,
        optimizer: Optimizer,
        names: Mapping[Parameter, str],
        batches_per_step: int = 1,
        scaling: Scaling | None = None,
    ) -> None:
        self._reducer = reducer
        self._scaling = scaling
        self._optimizer = optimizer
        self._names = names
        self._batches_per_step = batches_per_step
        self._passes: list[list[int]] = []  # of each bucket's members
        self._wrapped = {m.parameter for bucket in reducer.buckets for m in bucket.members}
        self._missing: list[int] = []
        self._is_open = False  # between begin() and finish()
        self._is_paused = False
        self.has_failed = False  # a gradient of this step was refused
        self._handles: list[RemovableHandle] = []
        # Python's garbage collection does not see what the hook of a parameter refers to: a model
        # and its optimizer, once dropped, would stay.
        this = weakref.ref(self)
        for index, bucket in enumerate(reducer.buckets):
            for position, member in enumerate(bucket.members):
                hook = partial(accumulated, this, index, position)
                handle = member.parameter.register_post_accumulate_grad_hook(hook)
                self._handles.append(handle)

    def expect(self, batches_per_step: int) -> None:
        """Set the number of backward passes of each step from the next one on."""
        self._batches_per_step = batches_per_step

    def begin(self) -> None:
        """Expect ``batches_per_step`` gradients of every parameter."""
        buckets = self._reducer.buckets
        self._passes = [[0] * len(bucket.members) for bucket in buckets]
        self._missing = [len(bucket.members) for bucket in buckets]
        if self._scaling is not None:
            self._scaling.begin()
        self._is_open = True
        self.has_failed = False

    def detach(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The buckets that are filled."""
        return self._reducer.buckets

    @property
    def has_begun(self) -> bool:
        """Whether a gradient of this step has arrived."""
        return self._is_open and any(map(any, self._passes))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context whose backward passes are no part of a step: ``.grad`` accumulates as
        without this source."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def accumulated(self, index: int, position: int) -> None:
        """Take one gradient of one backward pass. Called by autograd, on its thread.

        Args:
            index: Of the bucket.
            position: Of the parameter among the bucket's members.
        """
        bucket = self._reducer.buckets[index]
        if not self._is_open:
            name = bucket.members[position].name
            raise RuntimeError(
                f'gradient of {name} between synchronize() and step(): call step() first'
            )
        if self._is_paused:
            return
        passes = self._passes[index][position] = self._passes[index][position] + 1
        if passes > self._batches_per_step:
            self.has_failed = True
            name = bucket.members[position].name
            raise RuntimeError(
                f'{name} got {passes} gradients in one step, batches_per_step is '
                f'{self._batches_per_step}: step() was not called since the backward pass before. '
                'To discard that pass, call zero_grad() of this optimizer, not of the model; a '
                'pass that is no part of a step goes into `with optimizer.no_sync():`'
            )
        if passes == self._batches_per_step:
            bucket.note(position)
            self._missing[index] -= 1
            if not self._missing[index]:
                self._collect(index)
                self._reducer.ready(index)

    def finish(self) -> None:
        """Collect what has not come as often as expected: None, and zeros for it, or the sum of
        fewer passes."""
        check_trained(self._optimizer, self._wrapped, self._names)
        for index, missing in enumerate(self._missing):
            if missing:
                self._collect(index)
        self._is_open = False

    def _collect(self, index: int) -> None:
        """Use the gradients of a bucket, without their scale."""
        scaling, bucket = self._scaling, self._reducer.buckets[index]
        start = time.perf_counter()
        bucket.collect_all(None if scaling is None else scaling.inverse(bucket.device))
        if self._reducer.recorder is not None:
            self._reducer.recorder.add(Phase.MERGE, bucket.name, start, bucket.device)

    def check_result(self) -> None:
        """See ``Source.check_result``; called when no other thread writes gradients any more."""
        touched = [name for bucket in self._reducer.buckets for name in bucket.touched()]
        if touched:
            raise RuntimeError(
                f'the gradient of {", ".join(touched)} was changed between backward() and step(), '
                'while it was being sent: call synchronize() first, or clip with '
                'gradient_clipping'
            )


def accumulated(source: weakref.ref[GradientHooks], index: int, position: int, _: Tensor) -> None:
    """Hand the gradient of a bucket's member to its source, unless that was dropped."""
    hooks = source()
    if hooks is not None:
        hooks.accumulated(index, position)


class Movement(Source):
    """The movement ``Δ = θ_s - θ`` of the parameters since the ranks last agreed on θ_s.

    ``finish`` restores θ_s, so that the ranks hold the same parameters even if the exchange fails
    or is skipped.

    Args:
        reducer: Whose buckets are filled.

    Attributes:
        agreed: Name → θ_s, a copy.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self.agreed: dict[str, Tensor] = {}
        self.begin()

    @property
    def members(self) -> list[Member]:
        """All parameters that move."""
        return [member for bucket in self._reducer.buckets for member in bucket.members]

    @torch.no_grad()
    def begin(self) -> None:
        """Set θ_s to a copy of the present parameters."""
        for member in self.members:
            if member.name in self.agreed:
                self.agreed[member.name].copy_(member.parameter)
            else:
                self.agreed[member.name] = member.parameter.detach().clone()

    @torch.no_grad()
    def finish(self) -> None:
        """Write the contributions to ``.grad``, and restore θ_s."""
        for bucket in self._reducer.buckets:
            start = time.perf_counter()
            for member in bucket.members:
                member.parameter.grad = self.contribution(member)
                bucket.collect(member)
                member.parameter.copy_(self.agreed[member.name])
            if self._reducer.recorder is not None:
                self._reducer.recorder.add(Phase.MERGE, bucket.name, start, bucket.device)

    def contribution(self, member: Member) -> Tensor:
        """Return what a parameter contributes, in its shape: a new tensor."""
        return self.agreed[member.name] - member.parameter


def check_inner(inner: Optimizer) -> None:
    """Raise TypeError or ValueError for an optimizer that cannot take local steps."""
    check_part('inner', inner, Optimizer, 'torch.optim.AdamW(model.parameters())')
    has_momentum = any(group.get('momentum', 0) for group in inner.param_groups)
    if isinstance(inner, OneBitAdam) or (isinstance(inner, DGCSGD) and has_momentum):
        raise ValueError(
            f'{type(inner).__name__} leaves its momentum to a memory, and the inner steps have '
            'none: use torch.optim.SGD, Adam or AdamW'
        )


def check_trained(
    optimizer: Optimizer,
    wrapped: Collection[Parameter],
    names: Mapping[Parameter, str],
    remedy: str = 'detach() and wrap it again',
) -> None:
    """Raise RuntimeError where the parameters that are trained are not those that were wrapped.

    Args:
        optimizer: Whose parameters are looked at.
        wrapped: The parameters that the ranks average.
        names: Parameter → name, of the whole model.
        remedy: What to do in errors; 'after unfreezing or adding' and the like follow it.
    """
    new = [
        names.get(p, f'a parameter {tuple(p.shape)} that was added')
        for p in groups_of(optimizer)
        if p.grad is not None and p.numel() and p not in wrapped
    ]
    if new:
        raise RuntimeError(
            f'{", ".join(new)} was not trained when the optimizer was wrapped, so its gradient '
            f"is this rank's alone: {remedy} after unfreezing or adding"
        )
    frozen = [names[p] for p in wrapped if not p.requires_grad]
    if frozen:
        raise RuntimeError(
            f'{", ".join(frozen)} was trained when the optimizer was wrapped, and its residual '
            f'would still move it: {remedy} after freezing'
        )
