"""SGD whose momentum lives in a memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class DGCSGD(Optimizer):
    """SGD for gradients that carry momentum already (MomentumCorrection).

    Weight decay is not part of what is compressed. It is a dense, linear term, so its momentum is
    kept here, and the two parts add up to momentum SGD exactly where nothing is sparse:

        b ← m·b + λ·w,  w ← w − lr·(g + b)        Nesterov:  w ← w − lr·(g + λ·w + m·b)

    where ``g`` is the mean over the workers of what their memories sent.

    lr: learning rate.
    momentum, nesterov: read by the memory, and applied here to weight decay alone.
    weight_decay: λ, the L2 penalty.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        for name, value in {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay}.items():
            if value < 0:
                raise ValueError(f'{name} must be at least 0, got {value}')
        if nesterov and momentum == 0:
            raise ValueError('nesterov needs a momentum above 0')
        defaults = {
            'lr': lr,
            'momentum': momentum,
            'weight_decay': weight_decay,
            'nesterov': nesterov,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """One update from the ``.grad`` of each parameter; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group['params']:
                if parameter.grad is None:
                    continue
                if group['weight_decay']:
                    parameter.add_(self._decay(parameter, group), alpha=-group['lr'])
                parameter.add_(parameter.grad, alpha=-group['lr'])
        return loss

    def _decay(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        """Weight decay with momentum of its own, in the parameter's shape."""
        momentum = group['momentum']
        decay = parameter * group['weight_decay']
        if not momentum:
            return decay
        state = self.state[parameter]
        if 'decay_momentum' not in state:
            state['decay_momentum'] = torch.zeros_like(parameter)
        buffer = state['decay_momentum'].mul_(momentum).add_(decay)
        return decay.add_(buffer, alpha=momentum) if group['nesterov'] else buffer
