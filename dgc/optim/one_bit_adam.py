"""Adam whose second moment is frozen after a warm-up (Tang et al., arXiv 2102.02888)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer


class Denominator(NamedTuple):
    """√v̂ + ε of a parameter since v froze, and of which ε and v, by object and version."""

    eps: float
    second: int
    version: int
    value: Tensor


class OneBitAdam(Optimizer):
    """1-bit Adam's step (Algorithm 1), for the composition ``one_bit_adam``.

    While the composition is uncompressed, ``.grad`` is the mean gradient ḡ, and this is Adam:

        m ← β1·m + (1 - β1)·ḡ,  v ← β2·v + (1 - β2)·ḡ²,  w ← w - lr·m̂ / (√v̂ + ε)

    Afterwards ``.grad`` is the mean momentum m̄, which the memory AveragedMomentum keeps, and v and
    the factors of the bias correction stay as they are:  w ← w - lr·m̄ / ((1 - β1^T)·(√v̂ + ε)).
    The memory says which of both it has sent, in the setting ``sends_momentum`` of the groups.

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
            'sends_momentum': False,
        }
        super().__init__(params, defaults)
        self._frozen: dict[Tensor, Denominator] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what was pickled or saved; denominators are computed anew."""
        super().__setstate__(state)
        self._frozen = {}

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
        parameter.addcdiv_(momentum, self._denominator(parameter, group), value=rate)

    def _denominator(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        """Return √v̂ + ε, corrected as of the last step of the warm-up; computed once for a v."""
        state, eps = self.state[parameter], group['eps']
        second = state['exp_avg_sq']
        known = self._frozen.get(parameter)
        if known is not None and known[:3] == (eps, id(second), second._version):
            return known.value
        correction = math.sqrt(1 - group['betas'][1] ** max(state['step'], 1))
        value = second.sqrt().div_(correction).add_(eps)
        if state['is_frozen']:
            self._frozen[parameter] = Denominator(eps, id(second), second._version, value)
        return value
