"""What 1-bit Adam and 0/1 Adam have in common: a second moment that stays as it is for long."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer


class Denominator(NamedTuple):
    """√v̂ + ε of a parameter, None where it is not moved, and of which ε and v, by object and
    version."""

    eps: float
    second: int
    version: int
    value: Tensor | None


class KeptVarianceAdam(Optimizer):
    """Adam's settings, a step over all parameters, and denominators that are computed once for a v.

    Args:
        params, lr, betas, eps, weight_decay, min_variance: See the optimizers.
        more: Further settings of a group, with their defaults.

    Raises:
        ValueError: For settings out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        min_variance: float,
        **more: Any,
    ) -> None:
        if min(lr, eps, weight_decay, min_variance) < 0:
            raise ValueError(
                'lr, eps, weight_decay and min_variance must be at least 0, got '
                f'{lr}, {eps}, {weight_decay} and {min_variance}'
            )
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f'betas must be at least 0 and below 1, got {betas}')
        defaults = {
            'lr': lr,
            'betas': betas,
            'eps': eps,
            'weight_decay': weight_decay,
            'min_variance': min_variance,
            **more,
        }
        super().__init__(params, defaults)
        self._denominators: dict[Tensor, Denominator] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what was pickled or saved; denominators are computed anew."""
        super().__setstate__(state)
        self._denominators = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Take one step from the ``.grad`` of each parameter.

        Returns:
            The closure's loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group['params']:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    @abstractmethod
    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Take the step of a parameter."""

    def _kept(
        self, parameter: Tensor, second: Tensor, eps: float, compute: Callable[[], Tensor | None]
    ) -> Tensor | None:
        """Return the denominator of a parameter, from ``compute`` where v or ε is another one."""
        known = self._denominators.get(parameter)
        if known is None or known[:3] != (eps, id(second), second._version):
            known = Denominator(eps, id(second), second._version, compute())
            self._denominators[parameter] = known
        return known.value
