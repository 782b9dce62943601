"""Muon for matrices and AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.overrides import TorchFunctionMode

MUON, ADAMW = 'muon', 'adamw'  # values of 'kind' in a group
OTHERS = ('*embed*', '*position*', '*decoder*', '*head*')  # layers at the two ends of a network
PRODUCTS = (torch.addmm, Tensor.matmul)  # what Muon's iterations call; a @ b is Tensor.matmul


class Float32Products(TorchFunctionMode):
    """While active, ``a @ b`` and ``torch.addmm`` of bfloat16 matrices on a CPU run in float32.

    A result is rounded to bfloat16 once, as accelerators do it. ``torch.optim.Muon`` iterates in
    bfloat16, whose products take a CPU without instructions for them 17 times as long for a matrix
    of 192 × 192, and 32 times for one of 192 × 768 (one thread).
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        is_product = func in PRODUCTS and args and given.keys() <= {'alpha', 'beta'}
        if is_product and all(on_cpu_in_bfloat16(each) for each in args):
            return func(*(each.float() for each in args), **given).bfloat16()
        return func(*args, **given)


def on_cpu_in_bfloat16(value: Any) -> bool:
    """Return whether an argument is a tensor that ``Float32Products`` converts."""
    is_tensor = isinstance(value, Tensor)
    return is_tensor and value.dtype == torch.bfloat16 and value.device.type == 'cpu'


class MuonAndAdamW(Optimizer):
    """``torch.optim.Muon`` for the matrices, ``torch.optim.AdamW`` for everything else.

    Muon takes matrices only, and its authors leave the first and the last layer to AdamW. One
    object holds both: one wrapper, one schedule over all ``param_groups``, one state. With
    ``adjust_lr_fn='match_rms_adamw'`` both take the same learning rate and weight decay. On a CPU
    the products of Muon's iterations are computed in float32; see ``Float32Products``.

    Args:
        params: Parameters or groups of them; (name, parameter) pairs where ``others`` is to be
            applied. A group's settings go to both of its parts, where they have them.
        lr: Learning rate of both.
        weight_decay: Decoupled, of both.
        others: Patterns of the names of matrices that AdamW updates.
        momentum, nesterov, adjust_lr_fn: Of Muon.
        betas, eps: Of AdamW.

    Raises:
        ValueError: Where this torch has no Muon, which came with 2.9.
    """

    takes_names = True  # utils.build gives it names with the parameters

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        others: Sequence[str] = OTHERS,
        momentum: float = 0.95,
        nesterov: bool = True,
        adjust_lr_fn: str = 'match_rms_adamw',
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        if not hasattr(torch.optim, 'Muon'):
            raise ValueError(f'torch {torch.__version__} has no Muon: install torch 2.9 or newer')
        muon = {'momentum': momentum, 'nesterov': nesterov, 'adjust_lr_fn': adjust_lr_fn}
        settings = {MUON: muon, ADAMW: {'betas': betas, 'eps': eps}}
        groups: list[dict[str, Any]] = []
        for group in as_groups(params):
            given = {key: value for key, value in group.items() if key != 'params'}
            for kind, parameters in split(group['params'], others).items():
                common = {'lr': lr, 'weight_decay': weight_decay, **given, 'kind': kind}
                if parameters:
                    groups.append({**common, **settings[kind], 'params': parameters})
        inner_optimizers(groups)  # adds the settings that have defaults, and checks all
        super().__init__(groups, {'lr': lr, 'weight_decay': weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Update every parameter from its ``.grad``; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with Float32Products():
            for inner in inner_optimizers(self.param_groups):
                inner.state = self.state  # by parameter: the two never meet
                inner.step()
        return loss


def as_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Return groups of parameters; one group of parameters that come without."""
    given = list(params)
    return given if given and isinstance(given[0], dict) else [{'params': given}]


def split(parameters: Iterable[Any], others: Sequence[str]) -> dict[str, list[Tensor]]:
    """Return Muon's parameters and AdamW's: by shape, and by name where there are names.

    Args:
        parameters: Each by itself, or after its name.
        others: Patterns of the names of matrices that are AdamW's.
    """
    found: dict[str, list[Tensor]] = {MUON: [], ADAMW: []}
    for each in parameters:
        name, parameter = ('', each) if isinstance(each, Tensor) else each
        excepted = any(fnmatchcase(name, pattern) for pattern in others)
        found[MUON if parameter.dim() == 2 and not excepted else ADAMW].append(parameter)
    return found


def inner_optimizers(groups: Sequence[dict[str, Any]]) -> list[Optimizer]:
    """Return a Muon and an AdamW whose groups are these very dictionaries, by their 'kind'."""
    kinds = {MUON: torch.optim.Muon, ADAMW: AdamW}
    parts = {kind: [group for group in groups if group['kind'] == kind] for kind in kinds}
    return [kinds[kind](own) for kind, own in parts.items() if own]
