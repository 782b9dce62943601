"""Several optimizers, each over parameters of its own, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class Joint(Optimizer):
    """Steps several optimizers one after another, as one optimizer over all of their groups.

    Groups are shared with them, so that learning rate schedulers work on it. Its state is theirs.

    Args:
        optimizers: With no parameter in common.

    Raises:
        ValueError: For none, or two of one parameter.
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ValueError('Joint needs at least one optimizer')
        groups = [group for each in optimizers for group in each.param_groups]
        super().__init__([{**group} for group in groups], {})
        self.optimizers = optimizers
        self.param_groups = groups
        for each in optimizers:
            each.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all optimizers; the closure is called once, before the first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for each in self.optimizers:
            each.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict()`` returned, in the optimizers too."""
        super().load_state_dict(state_dict)
        begin = 0
        for each in self.optimizers:
            end = begin + len(each.param_groups)
            each.param_groups = self.param_groups[begin:end]
            each.state = self.state
            begin = end


def muon(
    params: Iterable[Any],
    lr: float = 0.02,
    momentum: float = 0.95,
    weight_decay: float = 0.0,
    adamw_lr: float = 0.001,
) -> Joint:
    """Return Muon for matrices and AdamW for all other parameters (MuLoCo, arXiv 2505.23725).

    Args:
        params: Parameters, or groups of them; of a group, its weight decay is used.
        lr: Of Muon.
        momentum: Of Muon.
        weight_decay: Of both, decoupled.
        adamw_lr: Of AdamW, for parameters that are no matrices.

    Raises:
        ValueError: Where there is nothing to train, or PyTorch has no Muon.
    """
    if not hasattr(torch.optim, 'Muon'):
        raise ValueError(f'Muon needs PyTorch 2.9 or later, and this is {torch.__version__}')
    listed = list(params)
    groups = [each if isinstance(each, dict) else {'params': [each]} for each in listed]
    matrices: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for group in groups:
        settings = {'weight_decay': group.get('weight_decay', weight_decay)}
        held = [group['params']] if isinstance(group['params'], torch.Tensor) else group['params']
        for target, chosen in (
            (matrices, [p for p in held if p.dim() == 2]),
            (others, [p for p in held if p.dim() != 2]),
        ):
            if chosen:
                target.append({'params': chosen, **settings})
    made: list[Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=lr, momentum=momentum))
    if others:
        made.append(torch.optim.AdamW(others, lr=adamw_lr))
    return Joint(*made)
