"""The local steps of 0/1 Adam (Lu et al., arXiv 2202.06009), and what follows from their mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dgc.optim.kept_variance import KeptVarianceAdam

STATE = ('exp_avg', 'exp_avg_sq', 'unsent')


class ZeroOneAdam(KeptVarianceAdam):
    """0/1 Adam's steps (Algorithm 1), which ``dgc.ZeroOneSteps`` calls.

    A local step, with the rate γ and this rank's gradient g:

        m ← β1·m + (1 - β1)·g,  w ← w - γ·m / (√v̂ + ε),  u ← u + γ·m

    A synchronization, with the mean ū over the ranks of u since the one before, at w_s:

        w ← w_s·(1 - λ·Σγ) - ū / (√v̂ + ε),  m ← ū / Σγ,  u ← 0

    The second moment follows the mean gradient ḡ, at the steps that ``dgc.ZeroOneSteps`` chooses:
    v ← β2·v + (1 - β2)·ḡ². The paper leaves open what it is at first. Here it begins at 0, and
    v̂ = v / (1 - β2^j) after its j-th change, as in Adam; the first one precedes the first movement.

    A parameter whose v is 0 everywhere, since no rank has had a gradient for it, is not moved.

    Args:
        lr: γ.
        betas: β1 and β2.
        eps: ε.
        weight_decay: λ, decoupled; applied at synchronizations.
        min_variance: v̂ counts as at least this fraction of its mean over the tensor. A coded ū has
            one magnitude for all elements of a block, also for those whose gradient was always
            near zero, and would be divided by √v ≈ 0 there.

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
        super().__init__(params, lr, betas, eps, weight_decay, min_variance)
        self.is_synchronized = False  # by a ZeroOneSteps

    def held(self, parameter: Tensor) -> dict[str, Any]:
        """Return the state of a parameter: m, v, u, the number of v's changes, and Σγ."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state.update({name: torch.zeros_like(parameter) for name in STATE})
            state.update({'changes': 0, 'rates': 0.0})
        return state

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Take one local step from the ``.grad`` of each parameter.

        Returns:
            The closure's loss.

        Raises:
            RuntimeError: Outside of ``dgc.ZeroOneSteps``: v would stay 0, and nothing would move.
        """
        if not self.is_synchronized:
            raise RuntimeError(
                'ZeroOneAdam takes the local steps of dgc.ZeroOneSteps: wrap it in that, or use '
                'torch.optim.Adam'
            )
        return super().step(closure)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Take the local step of a parameter."""
        state = self.held(parameter)
        state['exp_avg'].lerp_(grad, 1 - group['betas'][0])
        state['unsent'].add_(state['exp_avg'], alpha=group['lr'])
        denominator = self._denominator(parameter, group)
        if denominator is not None:
            parameter.addcdiv_(state['exp_avg'], denominator, value=-group['lr'])

    def add_rates(self) -> None:
        """Add this step's rates to Σγ, alike on all ranks: also where a scaler skips the step."""
        for group in self.param_groups:
            for parameter in filter(is_averaged, group['params']):
                self.held(parameter)['rates'] += float(group['lr'])

    @torch.no_grad()
    def follow(self, means: Mapping[Tensor, Tensor]) -> None:
        """Change v by the mean gradients of the parameters."""
        for group in self.param_groups:
            beta2 = group['betas'][1]
            for parameter in filter(means.__contains__, group['params']):
                state = self.held(parameter)
                mean = means[parameter].to(state['exp_avg_sq'].dtype)
                state['exp_avg_sq'].mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
                state['changes'] += 1

    @torch.no_grad()
    def adopt(self) -> None:
        """Move the parameters from w_s by ū, which is in ``.grad``, and take their momentum from
        it."""
        for group in self.param_groups:
            for parameter in filter(is_averaged, group['params']):
                state, mean = self.held(parameter), parameter.grad
                denominator = self._denominator(parameter, group)
                if denominator is not None:
                    parameter.mul_(1 - group['weight_decay'] * state['rates'])
                    parameter.addcdiv_(mean, denominator, value=-1)
                if state['rates']:
                    state['exp_avg'].copy_(mean).div_(state['rates'])
                self._begin(state)

    def restart(self, goes_on: bool = False) -> None:
        """Drop u; m, where it is not finite on this rank, begins at 0. v stays, as it is the same
        on all ranks.

        Args:
            goes_on: Whether the round goes on, with the u of other ranks: Σγ then stays, which must
                be alike on all ranks when they divide by it.
        """
        for state in self.state.values():
            rates = state['rates']
            self._begin(state)
            if goes_on:
                state['rates'] = rates
            if not bool(state['exp_avg'].isfinite().all()):
                state['exp_avg'].zero_()

    def _begin(self, state: dict[str, Any]) -> None:
        """Begin a sum of momenta."""
        state['unsent'].zero_()
        state['rates'] = 0.0

    def _denominator(self, parameter: Tensor, group: dict[str, Any]) -> Tensor | None:
        """Return √v̂ + ε, computed once for a v; None where v is 0 everywhere."""
        state = self.held(parameter)
        second, eps = state['exp_avg_sq'], group['eps']

        def compute() -> Tensor | None:
            mean = float(second.mean()) if second.numel() else 0.0
            if not mean:
                return None
            correction = math.sqrt(1 - group['betas'][1] ** state['changes'])
            value = second.clamp(min=group['min_variance'] * mean).sqrt_()
            return value.div_(correction).add_(eps)

        return self._kept(parameter, second, eps, compute)


def is_averaged(parameter: Tensor) -> bool:
    """Return whether ranks average u of a parameter: it is trained, and has elements."""
    return parameter.requires_grad and parameter.numel() > 0


class Synchronization(Optimizer):
    """The step that all ranks take from the mean of their u, in ``.grad``, on a ZeroOneAdam.

    Args:
        local: Whose parameters are moved, and whose momentum is replaced.
    """

    def __init__(self, local: ZeroOneAdam) -> None:
        super().__init__([{'params': list(group['params'])} for group in local.param_groups], {})
        self._local = local

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Move every parameter from w_s."""
        self._local.adopt()
