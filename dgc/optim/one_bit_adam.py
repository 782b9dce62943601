"""Adam whose second moment is frozen after a warm-up (Tang et al., arXiv 2102.02888)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dgc.optim.kept_variance import KeptVarianceAdam


class OneBitAdam(KeptVarianceAdam):
    """1-bit Adam's step (Algorithm 1), for the composition ``one_bit_adam``.

    While the composition is uncompressed, ``.grad`` is the mean gradient ḡ, and this is Adam:

        m ← β1·m + (1 - β1)·ḡ,  v ← β2·v + (1 - β2)·ḡ²,  w ← w - lr·m̂ / (√v̂ + ε)

    Afterwards ``.grad`` is the mean momentum m̄, which the memory AveragedMomentum keeps, and v and
    the factors of the bias correction stay as they are:  w ← w - lr·m̄ / ((1 - β1^T)·(√v̂ + ε)).
    The memory says which of both it has sent, in the setting ``sends_momentum`` of the groups.

    A parameter whose v is 0 everywhere when v freezes, since no rank has had a gradient for it in
    the warm-up, follows weight decay alone: its momentum would be divided by ε.

    Args:
        lr: Learning rate.
        betas: β1 and β2; β1 must be the composition's.
        eps: ε.
        weight_decay: Decoupled, as in AdamW: w ← w·(1 - lr·λ).
        min_variance: When v freezes, it is raised to at least this fraction of its mean over the
            tensor. A coded momentum has one magnitude for all elements of a block, also for those
            whose gradient was always zero, and dividing it by √v = 0 would end training. (The
            paper's implementation leaves it to its users to mask such elements.)

    Raises:
        ValueError: For settings out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        min_variance: float = 0.05,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, min_variance, sends_momentum=False)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group['betas']
        state = self.state[parameter]
        if not state:
            state['step'] = 0  # of the warm-up
            state['exp_avg'] = torch.zeros_like(parameter)
            state['exp_avg_sq'] = torch.zeros_like(parameter)
            state['is_frozen'] = False
        momentum, second = state['exp_avg'], state['exp_avg_sq']
        if not group['sends_momentum']:
            state['step'] += 1
            momentum.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        else:
            momentum.copy_(grad)
            if not state['is_frozen']:
                second.clamp_(min=group['min_variance'] * float(second.mean()))
                state['is_frozen'] = True
        if group['weight_decay']:
            parameter.mul_(1 - group['lr'] * group['weight_decay'])
        # The first moment's correction is that of the last step of the warm-up as well.
        rate = -group['lr'] / (1 - beta1 ** max(state['step'], 1))
        denominator = self._denominator(parameter, group)
        if denominator is not None:
            parameter.addcdiv_(momentum, denominator, value=rate)

    def _denominator(self, parameter: Tensor, group: dict[str, Any]) -> Tensor | None:
        """Return √v̂ + ε, corrected as of the last step of the warm-up; computed once for a frozen
        v, and None where that is 0 everywhere."""
        state, eps = self.state[parameter], group['eps']
        second: Tensor = state['exp_avg_sq']

        def compute() -> Tensor:
            correction = math.sqrt(1 - group['betas'][1] ** max(state['step'], 1))
            return second.sqrt().div_(correction).add_(eps)

        if not state['is_frozen']:
            return compute()
        return self._kept(parameter, second, eps, lambda: compute() if second.any() else None)
