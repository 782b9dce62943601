"""Scaled losses: the scale of a step's gradients, and a GradScaler whose methods wait for the mean.

Gradients of a scaled loss are divided by the scale as they are collected, so that clipping,
memories and messages are in the units of the loss. The mean is multiplied by the scale, since
``GradScaler.unscale_`` divides ``.grad`` by it. Where all ranks skip a step, ``.grad`` is NaN on
all of them, so that every rank's scaler finds the overflow in the same step.
"""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from dgc.checks import check_part, concrete


class Scaling:
    """The scale of the gradients of one optimizer.

    Args:
        scaler: Scales the losses; enabled.

    Attributes:
        is_stepping: Whether ``scaler.step(optimizer)`` is under way.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler
        self.is_stepping = False
        self._scales: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __str__(self) -> str:
        """What must be the same on all ranks, so that their scales stay the same."""
        return str(self.scaler.state_dict())

    def begin(self) -> None:
        """Forget the scale of the last step."""
        self._scales.clear()

    def scale(self, device: torch.device) -> Tensor:
        """Return the scale of this step, a float32 scalar on ``device``.

        Raises:
            RuntimeError: Where ``scaler.scale(loss)`` was never called.
        """
        return self._on(device)[0]

    def inverse(self, device: torch.device) -> Tensor:
        """Return 1 / scale, likewise."""
        return self._on(device)[1]

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Read the scale once in a step, without waiting for a GPU."""
        if device not in self._scales:
            scale = self.scaler._get_scale_async()
            if scale is None:
                raise RuntimeError(
                    'a gradient came before scaler.scale(loss) was called: call '
                    'scaler.scale(loss).backward(), or leave scaler out'
                )
            # A copy, since scaler.update() writes to the scale.
            scale = scale.detach().clone().to(device, non_blocking=device.type != 'cpu')
            self._scales[device] = scale, scale.double().reciprocal().float()
        return self._scales[device]


class Scaled(Protocol):
    """An optimizer that was given a scaler, which may be disabled, as this module uses it."""

    scaler: GradScaler | None
    scaling: Scaling | None

    def synchronize(self) -> bool:
        """Wait until every ``.grad`` holds the mean over the ranks."""

    def end_skipped_step(self) -> None:
        """End the step, where the scaler did not call ``step()``."""


class Method:
    """A method of one scaler, in the place of its class's; copied and pickled with the scaler."""

    name = ''

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(type(self._scaler), self.name)(self._scaler, *args, **kwargs)


class Unscale(Method):
    """``GradScaler.unscale_``, which waits for the mean gradients first."""

    name = 'unscale_'

    def __call__(self, optimizer: Any) -> None:
        """Divide the mean gradients of ``optimizer`` by the scale."""
        if is_given(self._scaler, optimizer):
            optimizer.synchronize()
        self._original(optimizer)


class Step(Method):
    """``GradScaler.step``, which ends the step of ``optimizer`` also where it is skipped."""

    name = 'step'

    def __call__(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Unscale, and step unless a gradient is not finite."""
        given = is_given(self._scaler, optimizer)
        if not given and getattr(optimizer, 'averages', False) and self._scaler.is_enabled():
            raise RuntimeError(
                'scaler.step(optimizer) of a GradScaler that was given to others than this '
                f'{type(optimizer).__name__}: an overflow on one rank would change its scale '
                'there alone: use another GradScaler here, or for a DistributedOptimizer write '
                'dgc.DistributedOptimizer(…, scaler=scaler)'
            )
        if not given or optimizer.scaling is None:
            return self._original(optimizer, *args, **kwargs)
        optimizer.scaling.is_stepping = True
        try:
            result = self._original(optimizer, *args, **kwargs)
        finally:
            optimizer.scaling.is_stepping = False
        optimizer.end_skipped_step()
        return result


class Update(Method):
    """``GradScaler.update``, which also ends steps that a loop leaves out after ``unscale_``.

    A copy of the scaler knows no optimizers.
    """

    name = 'update'

    def __init__(self, scaler: GradScaler) -> None:
        super().__init__(scaler)
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        return {'_scaler': self._scaler}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state['_scaler'])  # type: ignore[misc]

    def add(self, optimizer: Any) -> None:
        """Add an optimizer that was given this scaler."""
        self._optimizers.add(optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Adapt the scale."""
        for optimizer in self._optimizers:
            optimizer.end_skipped_step()
        self._original(*args, **kwargs)


def is_given(scaler: GradScaler, optimizer: object) -> bool:
    """Return whether ``optimizer`` is one of ours that was given ``scaler``."""
    ours = hasattr(type(optimizer), 'end_skipped_step')  # isinstance() of a Protocol is slow
    return ours and getattr(optimizer, 'scaler', None) is scaler


def scaling_of(
    scaler: GradScaler | None, parameters: Iterable[tuple[str, Tensor]] = ()
) -> Scaling | None:
    """Return the scaling by ``scaler``; None where that is None or disabled.

    Args:
        scaler: As the user gave it.
        parameters: Names and parameters that are trained.

    Raises:
        TypeError: Where ``scaler`` is none.
        ValueError: For float16 parameters, whose gradients no GradScaler divides.
    """
    if scaler is None:
        return None
    check_part('scaler', scaler, GradScaler, "torch.amp.GradScaler('cuda')")
    if not scaler.is_enabled():
        return None
    names = [name for name, parameter in parameters if parameter.dtype == torch.float16]
    if names:
        raise ValueError(
            f'scaler does not divide float16 gradients, and {names[0]} is float16: keep the '
            'parameters in float32 and compute in float16 by torch.autocast, or train in bfloat16 '
            'without scaler'
        )
    return Scaling(scaler)


def wait_in(scaler: GradScaler, optimizer: Scaled) -> None:
    """Make ``scaler.unscale_`` and ``scaler.step`` wait for ``optimizer``, and ``scaler.update``
    end its step."""
    if not isinstance(vars(scaler).get('update'), Update):
        for method in (Unscale(scaler), Step(scaler), Update(scaler)):
            setattr(scaler, method.name, method)
    vars(scaler)['update'].add(optimizer)


def check_step(optimizer: Scaled, closure: object) -> None:
    """Check, in ``optimizer.step()``, that the scaler calls it that ``optimizer`` was given.

    Raises:
        RuntimeError: Where another one does, or none.
    """
    with called_by_scaler(optimizer):
        if 'found_inf' in vars(optimizer):  # set by a scaler that does not know this optimizer
            raise RuntimeError(
                'scaler.step(optimizer) of a GradScaler that this optimizer was not given: '
                'gradients were compressed without their scale, and residuals would be of several '
                'scales: write dgc.DistributedOptimizer(…, scaler=scaler)'
            )
    if optimizer.scaling is None:
        return
    if not optimizer.scaling.is_stepping:
        raise RuntimeError(
            'step() of an optimizer with a GradScaler, not called by that scaler: call '
            'scaler.step(optimizer) and scaler.update(), or leave scaler out'
        )
    check_closure(closure)


@contextmanager
def called_by_scaler(optimizer: object) -> Iterator[None]:
    """Return a context for ``step()``; where it fails, what a GradScaler has set for it is removed,
    by which a later call would multiply the scale."""
    try:
        yield
    except BaseException:
        vars(optimizer).pop('found_inf', None)
        vars(optimizer).pop('grad_scale', None)
        raise


def check_closure(closure: object) -> None:
    """Raise RuntimeError for a closure, whose gradients no GradScaler would divide."""
    if closure is not None:
        raise RuntimeError(
            'scaler.step(optimizer, closure): call the closure first, since a GradScaler divides '
            'the gradients before step()'
        )


def step_scaled(wrapper: Optimizer, inner: Optimizer, closure: Callable[[], Any] | None) -> Any:
    """Return ``inner.step(closure)``; where a GradScaler called ``wrapper.step()``, divide the
    gradients before, and do not step after an overflow.

    Raises:
        ValueError: For float16 gradients, as ``GradScaler.unscale_``.
        RuntimeError: For a closure and a GradScaler.
    """
    given = vars(wrapper)
    found_inf, scale = given.get('found_inf'), given.get('grad_scale')
    if found_inf is None:
        return inner.step(closure)
    check_closure(closure)
    if found_inf:
        return None
    if scale is not None:  # None where unscale_() was called
        for group in inner.param_groups:
            divide([each.grad for each in group['params'] if each.grad is not None], scale)
    return inner.step()


def divide(gradients: Iterable[Tensor], scale: Tensor) -> None:
    """Divide gradients, dense or sparse, by the scale, in place."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        if gradient.dtype == torch.float16:
            raise ValueError(
                'a GradScaler does not divide float16 gradients: keep the parameters in float32, '
                'and compute in float16 by torch.autocast'
            )
        stored = gradient._values() if gradient.is_sparse else gradient.detach()
        alike[stored.device, stored.dtype].append(stored)
    inverse = scale.double().reciprocal().float()
    for (device, _), tensors in alike.items():
        torch._foreach_mul_(tensors, inverse.to(device))


def scalers_in_use() -> list[GradScaler]:
    """Return the GradScalers of this process that have scaled a loss. It takes about 0.05 s."""
    kinds = {id(kind) for kind in (GradScaler, *concrete(GradScaler))}
    found = [each for each in gc.get_objects() if id(type(each)) in kinds]
    return [each for each in found if each.is_enabled() and each._get_scale_async() is not None]


def check_given(optimizer: Optimizer, scaler: GradScaler | None, place: str) -> None:
    """Check a step of ``optimizer`` whose gradients were compressed with the scale of ``scaler``.

    Args:
        optimizer: Is about to step.
        scaler: As the user gave it.
        place: The call that takes it, for the message.

    Raises:
        RuntimeError: Where another GradScaler has divided the gradients.
    """
    for each in scalers_in_use():
        if each is not scaler and id(optimizer) in each._per_optimizer_states:
            raise RuntimeError(
                f'a GradScaler that was not given steps {type(optimizer).__name__}: gradients were '
                'compressed without their scale, and residuals would be of several scales: write '
                f'{place}'
            )


def with_remedy(error: ArithmeticError, place: str) -> ArithmeticError:
    """Return an error for a gradient that is not finite, with a remedy where losses are scaled."""
    if scalers_in_use():
        error.args = (
            f'{error}: to skip the step with a GradScaler, write {place}',
            *error.args[1:],
        )
    return error
