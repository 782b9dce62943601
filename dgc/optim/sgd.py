"""SGD for gradients to which a memory has already applied the momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dgc import ops
from dgc.ops import native


class DGCSGD(Optimizer):
    """SGD for gradients to which a memory has already applied the momentum (MomentumCorrection).

    Weight decay is not compressed. It is a dense, linear term that every rank computes itself, so
    its momentum ``b`` is kept here. Without compression, both momenta add up to momentum SGD:

        b ← m·b + λ·w,  w ← w − lr·(g + b)        Nesterov:  w ← w − lr·(g + λ·w + m·b)

    where ``g`` is the mean over the ranks of what their memories sent.

    Args:
        params: Parameters or groups of them, as for ``torch.optim.SGD``.
        lr: Learning rate.
        momentum: m. The memory reads and applies it; here it applies to weight decay only.
        weight_decay: λ, the L2 penalty.
        nesterov: Whether Nesterov momentum is used, by the memory and for weight decay.
        dampening: 0, since the memory, which applies the momentum to gradients, dampens none.

    Raises:
        ValueError: For a negative setting, Nesterov without momentum, or a dampening.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
    ) -> None:
        for name, value in {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay}.items():
            if value < 0:
                raise ValueError(f'{name} must be at least 0, got {value}')
        if nesterov and momentum == 0:
            raise ValueError('nesterov needs a momentum above 0')
        if dampening != 0:
            raise ValueError(
                f'dampening must be 0, got {dampening}: the memory applies the momentum, undampened'
            )
        defaults = {
            'lr': lr,
            'momentum': momentum,
            'weight_decay': weight_decay,
            'nesterov': nesterov,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Update each parameter from its ``.grad``.

        Args:
            closure: Computes the loss again; optional.

        Returns:
            The closure's loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group['params']:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if not (group['weight_decay'] and group['momentum']):
                    step_without_buffer(parameter, gradient, group)
                    continue
                buffer = self._decay_momentum(parameter)
                step = native.step if fits_kernel(parameter, gradient, buffer) else step_plainly
                step(parameter, gradient, buffer, group)
        return loss

    def _decay_momentum(self, parameter: Tensor) -> Tensor:
        """Return the buffer ``b``, in the parameter's shape; zeros at first."""
        state = self.state[parameter]
        if 'decay_momentum' not in state:
            state['decay_momentum'] = torch.zeros_like(parameter)
        return state['decay_momentum']


def step_without_buffer(parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
    """Update a parameter without ``b``: ``w ← w − lr·(g + λ·w)``."""
    if group['weight_decay']:
        parameter.mul_(1 - group['lr'] * group['weight_decay'])
    parameter.add_(gradient, alpha=-group['lr'])


def step_plainly(
    parameter: Tensor, gradient: Tensor, buffer: Tensor, group: dict[str, Any]
) -> None:
    """Update a parameter in plain PyTorch: the reference for ``native.step``.

    Args:
        parameter: w, changed in place.
        gradient: g.
        buffer: b, changed in place.
        group: The parameter's group, with ``lr``, ``momentum``, ``nesterov`` and ``weight_decay``.
    """
    momentum = group['momentum']
    decay = parameter * group['weight_decay']
    buffer.mul_(momentum).add_(decay)
    decay = decay.add_(buffer, alpha=momentum) if group['nesterov'] else buffer
    parameter.add_(decay, alpha=-group['lr']).add_(gradient, alpha=-group['lr'])


def fits_kernel(parameter: Tensor, gradient: Tensor, buffer: Tensor) -> bool:
    """Return whether the fused step supports a parameter, its gradient and its ``b``."""
    return (
        ops.is_native(parameter.device)
        and parameter.dtype == torch.float32
        and all(
            tensor.is_contiguous() and ops.is_aligned(tensor)
            for tensor in (parameter, gradient, buffer)
        )
    )
