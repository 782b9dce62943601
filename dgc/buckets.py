"""Parameters that travel together, and their flat storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc.schedule import RatioSchedule
from dgc.sparse import Sparse


class Member(NamedTuple):
    """A parameter of a bucket.

    group: the optimizer's, that it is in.
    offset: where its part of the flat tensors begins.
    """

    name: str
    parameter: Parameter
    group: dict[str, Any]
    offset: int


class Bucket:
    """Parameters that travel together: one flat gradient, and the memory's flat buffers.

    A parameter that is alone lends its ``.grad``, which becomes ``gradient`` without a copy; those
    that share a bucket have theirs copied into it, and get views of it. Either way the order is the
    parameter's logical one, whatever its memory format. State is saved and restored by parameter
    name, so a later run may group the parameters differently.

    gradient: ``[n]``, of the parameters' type and device.
    total: float32 ``[n]``, where the sum comes; ``gradient`` itself where that is float32.
    buffers: float32 ``[n]`` each, what the memory keeps.
    schedule: the ratio over time; ``None`` when the bucket is always dense.
    ratio: share of elements to keep at this step.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Parameter, dict[str, Any]]],
        schedule: RatioSchedule | None = None,
        buffers: Sequence[str] = (),
    ) -> None:
        first = parameters[0][1]
        self.numel = numel = sum(parameter.numel() for _, parameter, _ in parameters)
        self.schedule = schedule
        self.ratio = 1.0
        self.gradient = torch.zeros(numel, dtype=first.dtype, device=first.device)
        self.buffers = {name: torch.zeros(numel, device=first.device) for name in buffers}
        self._wide = None
        if first.dtype != torch.float32:
            self._wide = torch.zeros(numel, device=first.device)
        self.members: list[Member] = []
        offset = 0
        for name, parameter, group in parameters:
            self.members.append(Member(name, parameter, group, offset))
            offset += parameter.numel()

    @property
    def name(self) -> str:
        """The first parameter's name, and how many more there are."""
        more = len(self.members) - 1
        return self.members[0].name + (f' and {more} more' if more else '')

    @property
    def total(self) -> Tensor:
        """See the class."""
        return self.gradient if self._wide is None else self._wide

    @property
    def momentum(self) -> float:
        """The optimizer's momentum for these parameters; 0 when it has none."""
        return float(self._hyperparameter('momentum', 0.0))

    @property
    def nesterov(self) -> bool:
        """Whether the optimizer uses Nesterov's momentum for these parameters."""
        return bool(self._hyperparameter('nesterov', False))

    def _hyperparameter(self, key: str, default: float) -> float:
        found = {member.group.get(key, default) for member in self.members}
        if len(found) > 1:
            raise ValueError(f'{key} differs inside the bucket of {self.name}: {sorted(found)}')
        return found.pop()

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The part of ``flat[n]`` that belongs to each parameter, in the parameter's shape."""
        for member in self.members:
            yield member.name, part_of(flat, member.offset, member.parameter)

    def collect(self, member: Member) -> None:
        """Bring what autograd, or the user, stored in ``.grad`` into ``gradient``: nothing is 0."""
        grad = member.parameter.grad
        if grad is not None and self._can_be(grad):
            self.gradient = grad.detach().view(-1)
            return
        view = part_of(self.gradient, member.offset, member.parameter)
        if grad is None:
            view.zero_()
        elif grad.is_sparse:
            view.copy_(grad.to_dense())
        elif grad.data_ptr() != view.data_ptr():
            view.copy_(grad)
        member.parameter.grad = view

    def _can_be(self, grad: Tensor) -> bool:
        """Whether the gradient of a parameter can be the bucket's."""
        alone = len(self.members) == 1 and grad.dtype == self.gradient.dtype
        return alone and not grad.is_sparse and grad.is_contiguous()

    def zero(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or zero them where they are."""
        for member in self.members:
            if set_to_none:
                member.parameter.grad = None
            elif member.parameter.grad is not None:
                member.parameter.grad.zero_()

    def hold(self, values: Tensor) -> Tensor:
        """``values[n]`` in ``total``, to be summed in place; overwrites a float32 gradient."""
        return self.total if values is self.total else self.total.copy_(values)

    def assign_mean(self, parts: Sequence[Sparse], workers: int) -> None:
        """``gradient ← sum of parts / workers``, added in their order.

        A sparse part is divided as it is added, so that most elements are written just once.
        """
        if parts[0].is_dense:  # in total already
            self.total.div_(workers)
        else:
            self.total.zero_()
            for part in parts:
                part.add_to(self.total, alpha=1 / workers)
        if self.total is not self.gradient:
            self.gradient.copy_(self.total)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Copies of what is kept back: parameter name to buffer name to tensor."""
        state: dict[str, dict[str, Tensor]] = {member.name: {} for member in self.members}
        for buffer, flat in self.buffers.items():
            for name, view in self.views(flat):
                state[name][buffer] = view.clone()
        return state

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Take back what ``state_dict`` of any plan gave; zero where it has nothing."""
        for buffer, flat in self.buffers.items():
            for name, view in self.views(flat):
                saved = state.get(name, {}).get(buffer)
                if saved is None:
                    view.zero_()
                elif saved.shape != view.shape:
                    raise ValueError(
                        f'{buffer} of {name} was saved with shape {tuple(saved.shape)}, '
                        f'the parameter has {tuple(view.shape)}'
                    )
                else:
                    view.copy_(saved)


def part_of(flat: Tensor, offset: int, parameter: Tensor) -> Tensor:
    """The view of ``flat[n]`` that begins at ``offset`` and has the shape of ``parameter``."""
    return flat[offset : offset + parameter.numel()].view(parameter.shape)
