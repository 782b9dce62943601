"""The storage of a bucket: its gradients, and the state of the parts that process it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc import ops
from dgc.bucket_spec import BucketSpec
from dgc.bucket_state import BucketState
from dgc.ops.reference import fill
from dgc.sparse import Sparse
from dgc.state import Entries

PARTS: dict[str, Entries] = {}  # of a bucket that no part keeps state for


class Member(NamedTuple):
    """A parameter of a bucket.

    Attributes:
        name: As in the spec.
        parameter: Whose ``.grad`` holds the gradient, and later the result.
        group: The optimizer's group that the parameter is in.
        offset: Index of its first element in the flat tensors.
    """

    name: str
    parameter: Parameter
    group: dict[str, Any]
    offset: int


class Bucket:
    """Gradients of the parameters of one ``BucketSpec``, and the state that parts keep for them.

    Gradients are used where autograd stored them, without a copy, and the mean is written there
    (``pieces``). A part that needs one flat ``gradient`` has them copied, once a step, into storage
    of the bucket's own, of which each ``.grad`` is then a view. Gradients are copied as they come
    where that is to be expected: in a bucket that is never compressed, and where no kernel reads
    pieces. A gradient that shares its memory with another tensor, as autograd's may, is copied too,
    since the result is written to it. Elements are in the parameters' logical order, whatever their
    memory format.

    All writes go through tensors whose version is counted apart from that of ``.grad`` (``.data``),
    so that ``touched`` detects what the training loop has written there since.

    Attributes:
        spec: The parameters' names and shapes, and the density over time.
        density: Of this step; None for uncompressed.
        transformed: Float32 ``[n]`` while a transform's output is compressed; else None.
        members: The live parameters, in the order of the spec.
        state: What the parts keep between steps.
    """

    def __init__(
        self,
        spec: BucketSpec,
        members: Sequence[tuple[Parameter, dict[str, Any]]],
        parts: Mapping[str, Entries] = PARTS,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        """Allocate the state of ``parts``.

        Args:
            spec: What the bucket holds.
            members: Each parameter with its optimizer group, in the order of the spec.
            parts: Role of a part → its ``state_for(spec)``.
            rank, size: Of this rank, which decide the slice of an ``OwnedSlice``.
        """
        self.spec = spec
        self.numel, self.dtype, self.device = spec.numel, spec.dtype, spec.device
        self.density: float | None = None
        self.transformed: Tensor | None = None
        self.members = [
            Member(each.name, parameter, group, each.offset)
            for each, (parameter, group) in zip(spec.members, members, strict=True)
        ]
        self._rank = rank
        self._draws: dict[str, int] = {}  # where no codec's state is kept
        self._lent: dict[str, Tensor] = {}  # name → what autograd stored, flat
        self._taken: dict[str, tuple[Tensor, int]] = {}  # name → ``.grad`` and its version
        self._changed: set[str] = set()
        self._own: Tensor | None = None
        self._wide = None  # the float32 sum, where gradients are of another type
        if self.dtype != torch.float32:
            self._wide = torch.zeros(self.numel, dtype=torch.float32, device=self.device)
        self.state = BucketState(spec, parts, rank, size)

    @property
    def name(self) -> str:
        """The first parameter's name and the number of the others, for messages."""
        return self.spec.name

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The memory's float32 tensors ``[n]``, by name."""
        return self.state.get('memory', {})

    def next_seed(self) -> int:
        """Return a seed for one stochastic encoding: new at each call, reproduced on resuming."""
        draws = self.state.get('codec', {}).get('draws', self._draws)
        draws['count'] = count = draws.get('count', 0) + 1
        return zlib.crc32(f'{self._rank} {count} {self.spec.names[0]}'.encode())

    @property
    def gradient(self) -> Tensor:
        """The gradient in one tensor ``[n]``, of the parameters' type; ``pieces`` is this tensor
        from then on."""
        for member in self.members:
            if member.name in self._lent and len(self.members) > 1:
                self._part(member).view(-1).copy_(self._lent[member.name])
        return self._in_one()

    @property
    def contribution(self) -> Tensor:
        """What the memory adds to the residual, ``[n]``: the gradient, or its transform."""
        return self.gradient if self.transformed is None else self.transformed

    @property
    def contribution_pieces(self) -> list[Tensor]:
        """``contribution`` as flat tensors, one after another, without a copy."""
        return self.pieces if self.transformed is None else [self.transformed]

    def adopt(self, flat: Tensor) -> None:
        """Use ``flat[n]`` as the gradient, and as this bucket's own storage."""
        self._lent, self._own = {}, flat

    @property
    def pieces(self) -> list[Tensor]:
        """The gradient as flat tensors, one after another; writing to them changes it."""
        if not self._lent:
            return [self._storage()]
        return [self._piece(member) for member in self.members if member.parameter.numel()]

    def _piece(self, member: Member) -> Tensor:
        """Return a parameter's gradient, flat."""
        lent = self._lent.get(member.name)
        return self._part(member).view(-1) if lent is None else lent

    def _part(self, member: Member) -> Tensor:
        """Return a parameter's view of this bucket's own storage, in the parameter's shape."""
        return part_of(self._storage(), member.offset, member.parameter)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and gradient, in the parameter's shape."""
        for member in self.members:
            yield member.name, self._piece(member).view(member.parameter.shape)

    @property
    def total(self) -> Tensor:
        """Float32 ``[n]`` for a dense sum: the gradient's own storage where that is float32, which
        is overwritten."""
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
        found = {float(member.group.get(key, default)) for member in self.members}
        if len(found) > 1:
            raise ValueError(f'{key} differs inside the bucket of {self.name}: {sorted(found)}')
        return found.pop()

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and its view of ``flat[n]``, in the parameter's shape."""
        yield from self.spec.views(flat)

    def collect(self, member: Member) -> None:
        """Use the parameter's ``.grad`` as its gradient; None counts as zeros."""
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
            view.copy_(grad.detach())  # with create_graph=True it has a graph
        self._take(member, view.data)

    def _take(self, member: Member, grad: Tensor) -> None:
        """Set ``.grad``, and record its version for ``touched``."""
        member.parameter.grad = grad
        self._taken[member.name] = (grad, grad._version)

    def _is_touched(self, member: Member) -> bool:
        grad, version = self._taken.get(member.name, (None, 0))
        return grad is not None and (member.parameter.grad is not grad or grad._version != version)

    def touched(self) -> list[str]:
        """Return the names of parameters whose ``.grad`` was replaced or written to since it was
        collected."""
        changed = self._changed
        return [m.name for m in self.members if m.name in changed or self._is_touched(m)]

    def _borrows(self, grad: Tensor) -> bool:
        """Return whether a gradient can be used in place, without a copy."""
        lends = self.spec.schedule is not None and ops.is_native(self.device)
        fits = grad.dtype == self.dtype and not grad.is_sparse and grad.is_contiguous()
        fits = fits and ops.is_aligned(grad)
        return (lends or len(self.members) == 1) and fits and ops.is_sole(grad)

    def _in_one(self) -> Tensor:
        """Return one tensor ``[n]`` to hold the gradient.

        It is the gradient itself where there is only one, else the bucket's own storage, of which
        each ``.grad`` becomes a view. Nothing is copied, so the content of the latter is undefined.
        """
        if len(self._lent) == len(self.members) == 1:
            return self._piece(self.members[0])
        for member in self.members:
            if self._lent.pop(member.name, None) is not None:
                if self._is_touched(member):  # by the training loop, on another thread
                    self._changed.add(member.name)
                self._take(member, self._part(member).data)
        return self._storage()

    def _storage(self) -> Tensor:
        """Return this bucket's own storage ``[n]``, allocated at the first use."""
        if self._own is None:
            self._own = torch.zeros(self.numel, dtype=self.dtype, device=self.device)
        return self._own

    def zero(self, set_to_none: bool = True) -> None:
        """Release the gradients, or zero them in place."""
        if set_to_none:
            self._lent.clear()
        self._taken.clear()
        self._changed.clear()
        for member in self.members:
            if set_to_none:
                member.parameter.grad = None
            elif member.parameter.grad is not None:
                member.parameter.grad.zero_()

    def copy_to_total(self, values: Tensor) -> Tensor:
        """Return ``total``, holding ``values[n]``."""
        return self.total if values is self.total else self.total.copy_(values)

    def assign(self, contributions: Sequence[Sparse], divisor: int) -> None:
        """Write ``Σ contributions / divisor`` into the gradients.

        Args:
            contributions: All dense or all sparse. The first dense one may lie in ``total``. Sparse
                ones are divided as they are added, so that most elements are written just once.
            divisor: The world size for a mean of sums; 1 where the contributions are the result.
        """
        if not contributions[0].is_dense:
            ops.kernels(self.device).spread(self.pieces, contributions, 1 / divisor)
            if len(self._lent) == len(self.members):
                self._own = None  # from uncompressed steps before this one
            return
        result = self.copy_to_total(contributions[0].values)
        for contribution in contributions[1:]:
            contribution.add_to(result)
        result.div_(divisor)
        if result is self._wide:
            fill(self.pieces, result)

    def add_up(self, contributions: Sequence[Sparse], divisor: int) -> Tensor:
        """Return ``Σ contributions / divisor`` as a new float32 ``[n]``."""
        total = torch.zeros(self.numel, dtype=torch.float32, device=self.device)
        for contribution in contributions:
            contribution.add_to(total)
        return total.div_(divisor)


def part_of(flat: Tensor, offset: int, parameter: Tensor) -> Tensor:
    """Return the view of ``flat[n]`` that begins at ``offset``, in the shape of ``parameter``."""
    return flat[offset : offset + parameter.numel()].view(parameter.shape)
