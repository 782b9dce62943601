"""Parameters that travel together, their gradients, and what is kept back of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc import ops
from dgc.ops.reference import fill
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
    """Parameters that travel together: their gradients, and the memory's flat buffers.

    What autograd computed is lent, and the mean is written there: a gradient in ``pieces``. Whoever
    wants one flat ``gradient`` has it brought together: copied, once a step, into storage of the
    bucket's own, of which each ``.grad`` is then a view. Where that is to be expected, each is
    copied as it comes: in a bucket that is always dense, and where no kernel reads pieces. So is
    one that shares its memory with another tensor, as autograd's may, since what is lent is written
    to. The order is the parameter's logical one, whatever its memory format. State is saved and
    restored by parameter name, so a later run may group the parameters differently.

    All that is written here goes through tensors whose version is counted apart from that of
    ``.grad`` (``.data``), so that ``touched`` tells what others have written there since.

    dtype, device: of the parameters, and so of their gradients.
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
        self.dtype, self.device = first.dtype, first.device
        self._lent: dict[str, Tensor] = {}  # name → what autograd stored, flat
        self._taken: dict[str, tuple[Tensor, int]] = {}  # name → ``.grad`` and its version
        self._changed: set[str] = set()
        self._own: Tensor | None = None
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
    def gradient(self) -> Tensor:
        """``[n]``, of the parameters' type: the pieces, which are this one from then on."""
        for member in self.members:
            if member.name in self._lent and len(self.members) > 1:
                self._part(member).view(-1).copy_(self._lent[member.name])
        return self._in_one()

    def adopt(self, flat: Tensor) -> None:
        """``flat[n]`` becomes the gradient, and this bucket's own storage."""
        self._lent, self._own = {}, flat

    @property
    def pieces(self) -> list[Tensor]:
        """Flat tensors that one after another are the gradient; written to, they change it."""
        if not self._lent:
            return [self._storage()]
        return [self._piece(member) for member in self.members if member.parameter.numel()]

    def _piece(self, member: Member) -> Tensor:
        """A parameter's gradient, flat."""
        lent = self._lent.get(member.name)
        return self._part(member).view(-1) if lent is None else lent

    def _part(self, member: Member) -> Tensor:
        """A parameter's place in this bucket's own storage, in its shape."""
        return part_of(self._storage(), member.offset, member.parameter)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name and gradient, in its shape, wherever it lies."""
        for member in self.members:
            yield member.name, self._piece(member).view(member.parameter.shape)

    @property
    def total(self) -> Tensor:
        """Float32 ``[n]``, where a dense sum comes: in the place of the gradient, where that is
        float32, which it need not hold any longer."""
        return self._in_one() if self._wide is None else self._wide

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
        """Take what autograd, or the user, stored in ``.grad``; nothing is 0."""
        grad = member.parameter.grad
        self._lent.pop(member.name, None)
        self._changed.discard(member.name)
        if grad is not None and self._borrows(grad):
            self._lent[member.name] = grad.data.view(-1)
            self._taken[member.name] = (grad, grad._version)
            return
        view = self._part(member)
        if grad is None:
            view.zero_()
        elif grad.is_sparse:
            view.copy_(grad.detach().to_dense())
        elif grad.data_ptr() != view.data_ptr():
            view.copy_(grad.detach())  # of which autograd may be told to keep a graph
        self._take(member, view.data)

    def _take(self, member: Member, grad: Tensor) -> None:
        """``grad`` is the parameter's from now on, as it is."""
        member.parameter.grad = grad
        self._taken[member.name] = (grad, grad._version)

    def _is_touched(self, member: Member) -> bool:
        grad, version = self._taken.get(member.name, (None, 0))
        return grad is not None and (member.parameter.grad is not grad or grad._version != version)

    def touched(self) -> list[str]:
        """Parameters whose ``.grad`` is another, or has been written to, since it was collected."""
        changed = self._changed
        return [m.name for m in self.members if m.name in changed or self._is_touched(m)]

    def _borrows(self, grad: Tensor) -> bool:
        """Whether a gradient can stay where it is."""
        lends = self.schedule is not None and ops.is_native(self.device)
        fits = grad.dtype == self.dtype and not grad.is_sparse and grad.is_contiguous()
        return (lends or len(self.members) == 1) and fits and ops.is_sole(grad)

    def _in_one(self) -> Tensor:
        """``[n]`` in one tensor: the only gradient, as it was lent, or this bucket's own storage,
        of which each ``.grad`` is a view from now on, whatever it holds."""
        if len(self._lent) == len(self.members) == 1:
            return self._piece(self.members[0])
        for member in self.members:
            if self._lent.pop(member.name, None) is not None:
                if self._is_touched(member):  # by the training loop, while this thread was away
                    self._changed.add(member.name)
                self._take(member, self._part(member).data)
        return self._storage()

    def _storage(self) -> Tensor:
        """``[n]`` of this bucket's own, made when it is first wanted."""
        if self._own is None:
            self._own = torch.zeros(self.numel, dtype=self.dtype, device=self.device)
        return self._own

    def zero(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or zero them where they are."""
        if set_to_none:
            self._lent.clear()
        self._taken.clear()
        self._changed.clear()
        for member in self.members:
            if set_to_none:
                member.parameter.grad = None
            elif member.parameter.grad is not None:
                member.parameter.grad.zero_()

    def hold(self, values: Tensor) -> Tensor:
        """``values[n]`` in ``total``, to be summed in place."""
        return self.total if values is self.total else self.total.copy_(values)

    def assign_mean(self, parts: Sequence[Sparse], workers: int) -> None:
        """Every gradient becomes its part of the sum of ``parts``, divided by ``workers``.

        A sparse part is divided as it is added, so that most elements are written just once.
        """
        if not parts[0].is_dense:
            ops.kernels(self.device).spread(self.pieces, parts, 1 / workers)
            if len(self._lent) == len(self.members):
                self._own = None  # from dense steps before this one
            return
        mean = self.total.div_(workers)  # where the sum is already
        if mean is self._wide:
            fill(self.pieces, mean)

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
