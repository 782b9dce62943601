"""Which wrapper has a parameter, and steps an optimizer: at most one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

owners = WeakTensorKeyDictionary()  # parameter → weak reference to its wrapper
guards: weakref.WeakKeyDictionary[Optimizer, Guard] = weakref.WeakKeyDictionary()


class Guard:
    """Refuses the steps of a wrapped optimizer that its wrapper does not take: they would apply
    this rank's own gradients, in silence.

    It outlives the wrapper, for programs that did not keep what wrapping returned.

    Args:
        optimizer: The wrapped one.
        wrapper: Takes its steps.
    """

    def __init__(self, optimizer: Optimizer, wrapper: Optimizer) -> None:
        if optimizer in guards:  # of a wrapper that was dropped
            guards[optimizer].remove()
        guards[optimizer] = self
        self._kind = type(wrapper).__name__
        self._wrapper = weakref.ref(wrapper)
        self._is_open = False
        self._handle = optimizer.register_step_pre_hook(self._check)

    @property
    def hook(self) -> int:
        """The number of its hook among those before the optimizer's steps."""
        return self._handle.id

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Return a context in which the optimizer may step."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def remove(self) -> None:
        """Let the optimizer step by itself."""
        self._handle.remove()

    def _check(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        if self._is_open:
            return
        name = type(optimizer).__name__
        if self._wrapper() is None:
            raise RuntimeError(
                f'{name}.step() would apply the gradients of this rank alone, since the '
                f'{self._kind} around it was dropped: keep what dgc.{self._kind}(…) returns, and '
                'call its step()'
            )
        raise RuntimeError(
            f'{name}.step() would apply the gradients of this rank alone: call step() of the '
            f'{self._kind} around it, or detach() that first'
        )


def owner_of(parameter: Parameter) -> object:
    """Return the wrapper that has ``parameter``; None where there is none."""
    reference = owners.get(parameter)
    return None if reference is None else reference()


def check_free(named: Iterable[tuple[str, Parameter]]) -> None:
    """Raise ValueError where a wrapper has one of the parameters already."""
    named = list(named)
    if any(owner_of(parameter) is not None for _, parameter in named):
        gc.collect()  # wrappers that the program has dropped, which refer to themselves
    for name, parameter in named:
        owner = owner_of(parameter)
        if owner is not None:
            raise ValueError(
                f'{name} is a parameter of another {type(owner).__name__}, and both would send its '
                'gradients: detach() that one before'
            )


def take(wrapper: Optimizer, parameters: Iterable[Parameter]) -> None:
    """Note that ``wrapper`` has these parameters."""
    reference = weakref.ref(wrapper)
    for parameter in parameters:
        owners[parameter] = reference


def release(wrapper: Optimizer, parameters: Iterable[Parameter]) -> None:
    """Let another wrapper have those of these parameters that ``wrapper`` has."""
    for parameter in parameters:
        if owner_of(parameter) is wrapper:
            owners.pop(parameter)


def weakly(method: Callable[[], None]) -> Callable[[Any], None]:
    """Return a hook that calls a bound method, and does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(_: Any) -> None:
        bound = reference()
        if bound is not None:
            bound()

    return call
