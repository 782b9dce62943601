"""SGD for gradients to which a memory has already applied the momentum."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dgc import ops
from dgc.ops import native

Tensors = list[Tensor] | tuple[Tensor, ...]

AT_ONCE = 1 << 23  # elements of parameters that are updated together, with a temporary as large
NEGLIGIBLE = 1e-12  # the part of a loaded momentum at which it is dropped


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

    has_memory = False  # whether a memory applies the momentum to the gradients
    _steps_without = 0

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
            'dampening': dampening,  # torch.optim.SGD reads it from a state that it loads
        }
        super().__init__(params, defaults)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a DGCSGD or a ``torch.optim.SGD``.

        SGD's ``momentum_buffer`` becomes ``b``, which is applied uncompressed and decays by ``m``
        each step, so that the update goes on as that of SGD would.

        Raises:
            ValueError: For an SGD's dampening or ``maximize``.
        """
        for group in state_dict['param_groups']:
            for name in ('dampening', 'maximize'):
                if group.get(name):
                    raise ValueError(
                        f'the saved SGD has {name}={group[name]}, and DGCSGD has no {name}: go on '
                        'with torch.optim.SGD and the memory Residual'
                    )
        state = {key: from_sgd(entries) for key, entries in state_dict['state'].items()}
        super().load_state_dict({**state_dict, 'state': state})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault('dampening', 0.0)  # of an earlier version

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
        if not self.has_memory:
            self._warn_without_memory()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        """Update the parameters of a group that have a gradient."""
        without: list[tuple[Tensor, Tensor]] = []
        plain: list[tuple[Tensor, Tensor, Tensor]] = []
        carrying = []
        for parameter in group['params']:
            gradient = parameter.grad
            if gradient is None:
                continue
            carries = 'decay_momentum' in self.state.get(parameter, ())
            if not (group['momentum'] and (group['weight_decay'] or carries)):
                without.append((parameter, gradient))
                continue
            carrying.append(parameter)
            buffer = self._decay_momentum(parameter, group['weight_decay'])
            if fits_kernel(parameter, gradient, buffer):
                native.step(parameter, gradient, buffer, group)
            else:
                plain.append((parameter, gradient, buffer))
        # Many at once: on a GPU, a kernel for each parameter takes longer to start than to run.
        if without:
            step_without_buffer([w for w, _ in without], [g for _, g in without], group)
        for some in in_parts(plain):
            w, g, b = map(list, zip(*some, strict=True))
            step_plainly(w, g, b, group)
        if not group['weight_decay']:
            for parameter in carrying:
                self._let_decay(parameter, group['momentum'])

    def _warn_without_memory(self) -> None:
        """Warn once of a momentum that nothing applies.

        In the second step: a communication hook may meet this optimizer in its first, where the
        closure computes the gradients.
        """
        if not any(group['momentum'] for group in self.param_groups):
            return
        self._steps_without += 1
        if self._steps_without != 2:
            return
        warnings.warn(
            'DGCSGD leaves its momentum to the memory of a composition, and steps without one, so '
            'that the momentum is not applied: wrap it in dgc.DistributedOptimizer, or register '
            'compression_hook with the model (on CPUs, Lightning ignores '
            'DDPStrategy(ddp_comm_hook=…))',
            stacklevel=2,
        )

    def _let_decay(self, parameter: Tensor, momentum: float) -> None:
        """Drop ``b`` once ``m`` per step has made it negligible, where weight decay adds nothing.

        Else it would end in denormal numbers, with which CPUs compute slowly.
        """
        state = self.state[parameter]
        state['decayed_steps'] = state.get('decayed_steps', 0) + 1
        if momentum ** state['decayed_steps'] < NEGLIGIBLE:
            del self.state[parameter]

    def _decay_momentum(self, parameter: Tensor, weight_decay: float) -> Tensor:
        """Return the buffer ``b``, in the parameter's shape; zeros at first.

        Where weight decay adds to it, it has not begun to decay: see ``_let_decay``.
        """
        state = self.state[parameter]
        if weight_decay:
            state.pop('decayed_steps', None)
        if 'decay_momentum' not in state:
            state['decay_momentum'] = torch.zeros_like(parameter)
        return state['decay_momentum']


def from_sgd(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of one parameter with SGD's ``momentum_buffer`` as ``decay_momentum``.

    Where both are there, ``DistributedOptimizer.gather_state_dict()`` has saved them: the rest of
    ``momentum_buffer`` is in the ranks' memories.
    """
    kept = {name: value for name, value in entries.items() if name != 'momentum_buffer'}
    buffer, decay = entries.get('momentum_buffer'), entries.get('decay_momentum')
    if buffer is None:
        return kept
    if decay is None:
        kept['decay_momentum'] = buffer
    elif not decay.any():  # made for the sake of momentum_buffer, without weight decay
        del kept['decay_momentum']
    return kept


def in_parts(
    updates: list[tuple[Tensor, Tensor, Tensor]], most: int = AT_ONCE
) -> Iterator[list[tuple[Tensor, Tensor, Tensor]]]:
    """Divide updates into lists of parameters with together at most ``most`` elements, or one."""
    part: list[tuple[Tensor, Tensor, Tensor]] = []
    numel = 0
    for each in updates:
        if part and numel + each[0].numel() > most:
            yield part
            part, numel = [], 0
        part.append(each)
        numel += each[0].numel()
    if part:
        yield part


def step_without_buffer(parameters: Tensors, gradients: Tensors, group: dict[str, Any]) -> None:
    """Update parameters without ``b``: ``w ← w − lr·(g + λ·w)``."""
    if group['weight_decay']:
        torch._foreach_mul_(parameters, 1 - group['lr'] * group['weight_decay'])
    torch._foreach_add_(parameters, gradients, alpha=-group['lr'])


def step_plainly(
    parameters: Tensors,
    gradients: Tensors,
    buffers: Tensors,
    group: dict[str, Any],
) -> None:
    """Update parameters in plain PyTorch: the reference for ``native.step``.

    Args:
        parameters: Each w, changed in place.
        gradients: Each g.
        buffers: Each b, changed in place.
        group: The parameters' group, with ``lr``, ``momentum``, ``nesterov`` and ``weight_decay``.
    """
    momentum = group['momentum']
    decays: Tensors = torch._foreach_mul(parameters, group['weight_decay'])
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, decays)
    if group['nesterov']:
        torch._foreach_add_(decays, buffers, alpha=momentum)
    else:
        decays = buffers
    torch._foreach_add_(parameters, decays, alpha=-group['lr'])
    torch._foreach_add_(parameters, gradients, alpha=-group['lr'])


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
