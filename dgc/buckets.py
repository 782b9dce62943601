"""The storage of a bucket: its gradients, and the state of the parts that process it."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc import ops
from dgc.bucket_spec import BucketSpec
from dgc.bucket_state import BucketState
from dgc.mean import LazyGradient, SparseMean, dense
from dgc.ops.gradients import address, gather, lend, show, touched
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


class Taken(NamedTuple):
    """A ``.grad`` as it was collected: the tensor, its version, and where its elements lie."""

    grad: Tensor
    version: int
    address: int


class Bucket:
    """Gradients of the parameters of one ``BucketSpec``, and the state that parts keep for them.

    Gradients are read where autograd stored them, without a copy (``pieces``). A part that needs
    one flat ``gradient`` has them copied, once a step, into storage of the bucket's own. Gradients
    are copied as they come where that is to be expected: in a bucket that is never compressed, and
    where no kernel reads pieces. A sparse gradient is copied as a dense one, and its result is made
    sparse. A gradient that shares its memory with another tensor, as
    autograd's may, is copied too, since the result is written to it. Elements are in the
    parameters' logical order, whatever their memory format.

    ``publish`` alone writes the result to ``.grad``, from memory that the training loop cannot
    reach: sparse contributions are added up into the gradients where they lie; a dense result is in
    the bucket's own storage, of which each ``.grad`` then becomes a view. So a write to ``.grad``
    before that, seen or not, cannot give the ranks different results.

    All writes go through tensors whose version is counted apart from that of ``.grad`` (``.data``),
    so that ``touched`` detects what the training loop has written there since.

    Attributes:
        spec: The parameters' names and shapes, and the density over time.
        density: Of this step; None for uncompressed.
        transformed: Float32 ``[n]`` while a transform's output is compressed; else None.
        members: The live parameters, in the order of the spec.
        state: What the parts keep between steps.
        unused: The names of the parameters that were collected without a gradient.
        publishes: Whether the result is written to ``.grad``; else it stays in ``gradient``, for a
            caller that also fills that and ``unused``.
        sparse_dims: Name → the number of sparse dimensions, of parameters whose last gradient was
            sparse: this rank's or, where it had none, that of the ranks that had one.
        hands_over: Whether ``publish`` leaves a sparse result to an optimizer that applies it as it
            is; ``write`` makes it the ``.grad`` after all.
        renews: Whether a memory writes new buffers beside the present ones, so that these need not
            be copied to be restored. It takes as much storage again.
        continued: The names of the parameters whose gradient is a further part of the last step's,
            with whose first part the momentum was applied (see ``Memory.continues``).
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
        self._places = {member.name: place for place, member in enumerate(self.members)}
        self._taken: list[Taken | None] = [None] * len(self.members)
        self.sparse_dims: dict[str, int] = {}
        self._changed: set[str] = set()
        self.unused: set[str] = set()
        self.publishes = True
        self.hands_over = False
        self.renews = False
        self._earlier: dict[str, Tensor] = {}  # the buffers before those of this step
        self.continued: set[str] = set()
        self._own: Tensor | None = None
        self._spare: Tensor | None = None  # takes turns with it while ``.grad`` shows the other
        self._shows_own = False  # whether ``publish`` made ``.grad`` views of ``_own``
        self._mean: SparseMean | None = None  # to be spread in ``publish``
        self._wide = None  # the float32 sum, where gradients are of another type
        if self.dtype != torch.float32:
            self._wide = self._allocate(torch.float32)
        self.state = BucketState(spec, parts, rank, size)

    @property
    def name(self) -> str:
        """The first parameter's name and the number of the others, for messages."""
        return self.spec.name

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The memory's tensors ``[n]``, by name: float32, or bfloat16 where it says so."""
        return self.state.get('memory', {})

    def next_seed(self) -> int:
        """Return a seed for one stochastic encoding: new at each call, reproduced on resuming."""
        draws = self.state.get('codec', {}).get('draws', self._draws)
        draws['count'] = count = draws.get('count', 0) + 1
        return zlib.crc32(f'{self._rank} {count} {self.spec.names[0]}'.encode())

    def resize(self, rank: int, size: int) -> None:
        """Become the bucket of another rank or world size; see ``BucketState.resize``."""
        self._rank = rank
        self.state.resize(rank, size)

    @property
    def gradient(self) -> Tensor:
        """The gradient in the bucket's own storage ``[n]``, of the parameters' type; ``pieces`` is
        this tensor from then on."""
        for member in self.members:
            lent = self._lent.pop(member.name, None)
            if lent is not None:
                self._part(member).view(-1).copy_(lent)
        return self._storage()

    @property
    def contribution(self) -> Tensor:
        """What the memory adds to the residual, ``[n]``: the gradient, or its transform."""
        if self.transformed is not None:
            return self.transformed
        return self.pieces[0] if len(self.members) == 1 else self.gradient

    @property
    def contribution_pieces(self) -> list[Tensor]:
        """``contribution`` as flat tensors, one after another, without a copy."""
        return self.pieces if self.transformed is None else [self.transformed]

    @property
    def contribution_dtype(self) -> torch.dtype:
        """The type of ``contribution``."""
        return self.dtype if self.transformed is None else self.transformed.dtype

    def renew(self, names: Sequence[str]) -> list[Tensor]:
        """Return storage for new buffers of these names, which replace the present ones now.

        The present ones stay as they are until the next call, as ``revert`` needs them.
        """
        if not names:
            return []
        fresh = {}
        for name in names:
            spare = self._earlier.get(name)
            fresh[name] = torch.empty_like(self.buffers[name]) if spare is None else spare
        self._earlier = {name: self.buffers[name] for name in names}
        self.buffers.update(fresh)
        return [fresh[name] for name in names]

    def revert(self) -> None:
        """Put back the buffers that the last ``renew`` replaced."""
        self._earlier, earlier = {name: self.buffers[name] for name in self._earlier}, self._earlier
        self.buffers.update(earlier)

    def adopt(self, flat: Tensor) -> None:
        """Use ``flat[n]`` as the gradient, and as this bucket's own storage."""
        self._lent, self._own, self._mean = {}, flat, None

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
        """Float32 ``[n]`` for a dense sum: the bucket's own storage where that is float32, which is
        overwritten."""
        return self._storage() if self._wide is None else self._wide

    @property
    def total_and_flag(self) -> Tensor:
        """``total`` and one number behind it, float32 ``[n + 1]``, which a sum can carry."""
        return self.total.as_strided((self.numel + 1,), (1,))

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

    def note(self, place: int) -> None:
        """Note the ``.grad`` of the parameter at a place, or that it has none, for ``collect``.

        Called by autograd's hook of every parameter, so it does no more than it must.
        """
        member = self.members[place]
        grad = member.parameter.grad
        if type(grad) is LazyGradient:  # of the last step, which the training loop has kept
            grad = member.parameter.grad = dense(grad)
        if grad is None:
            self.unused.add(member.name)
            self._taken[place] = None
            return
        self.unused.discard(member.name)
        self._taken[place] = Taken(grad, grad._version, address(grad))

    def collect(self, member: Member, factor: Tensor | None = None) -> None:
        """Use the parameter's ``.grad``, times ``factor``, as its gradient; zeros for None."""
        place = self._places[member.name]
        self.note(place)
        self._lent.pop(member.name, None)
        self._take([place], factor)

    def collect_all(self, factor: Tensor | None = None) -> None:
        """``collect`` every parameter, in a few calls for all of them.

        Those that are noted must not have been changed since.
        """
        for place, taken in enumerate(self._taken):
            if taken is None:
                self.note(place)
        self._lent.clear()
        self._take(range(len(self.members)), factor)

    def _take(self, places: Sequence[int], factor: Tensor | None) -> None:
        """Use, as gradients, what was noted at these places, of which none is lent."""
        if self._shows_own:
            self._keep_apart()
        noted = [(self.members[place], self._taken[place]) for place in places]
        present = [(member, taken.grad) for member, taken in noted if taken is not None]
        gradients = [grad for _, grad in present]
        if self.sparse_dims:
            for member, _ in present:
                self.sparse_dims.pop(member.name, None)
        lent: Sequence[Tensor] = ()
        copied: Sequence[int] = range(len(present))
        if self._lends:
            lent, copied = lend(gradients, self.dtype)
        if lent:
            is_copied = set(copied)
            names = [m.name for at, (m, _) in enumerate(present) if at not in is_copied]
            self._lent.update(zip(names, lent, strict=True))
        if copied:
            some = [gradients[at] for at in copied]
            for at, grad in zip(copied, some, strict=True):
                if grad.is_sparse:
                    self.sparse_dims[present[at][0].name] = grad.sparse_dim()
            gather(self._storage(), some, [present[at][0].offset for at in copied])
        if len(present) < len(places):
            for member, taken in noted:
                if taken is None:
                    self._part(member).zero_()
        if present and factor is not None:
            torch._foreach_mul_([self._piece(member) for member, _ in present], factor)

    @property
    def _lends(self) -> bool:
        """Whether gradients are used in place, without a copy, where they can be."""
        return len(self.members) == 1 or (
            self.spec.schedule is not None and ops.is_native(self.device)
        )

    def _keep_apart(self) -> None:
        """Change to other storage where a ``.grad`` is still a view of the bucket's own, because
        the training loop did not release it after the last step."""
        self._shows_own = False
        if self._own is None:
            return
        begin = self._own.data_ptr()  # untyped_storage() would leave a reference, see is_sole
        own = range(begin, begin + self._own.nbytes)
        for member, taken in zip(self.members, self._taken, strict=True):
            grad = member.parameter.grad if taken is None else taken.grad
            if grad is not None and address(grad) in own:
                self._own, self._spare = self._spare, self._own
                return

    def touched(self) -> list[str]:
        """Return the names of parameters whose ``.grad`` was replaced or written to since it was
        collected, and before it was published."""
        changed = self._changed | self._changed_since()
        return [m.name for m in self.members if m.name in changed] if changed else []

    def _changed_since(self) -> set[str]:
        """Return the names of the parameters whose ``.grad`` is not as it was noted."""
        noted = [
            each for each in zip(self.members, self._taken, strict=True) if each[1] is not None
        ]
        if not noted:
            return set()
        members, taken = zip(*noted, strict=True)
        places = touched([m.parameter for m in members], *map(list, zip(*taken, strict=True)))
        return {members[place].name for place in places}

    def _storage(self) -> Tensor:
        """Return this bucket's own storage ``[n]``, allocated at the first use."""
        if self._own is None:
            self._own = self._allocate(self.dtype)
        return self._own

    def _allocate(self, dtype: torch.dtype) -> Tensor:
        """Return zeros ``[n]``, with room for a number behind them (``total_and_flag``)."""
        return torch.zeros(self.numel + 1, dtype=dtype, device=self.device)[: self.numel]

    def zero(self, set_to_none: bool = True) -> None:
        """Release the gradients, or zero them in place."""
        if set_to_none:
            self._lent.clear()
            self._spare = None
        self._mean = None
        self._taken = [None] * len(self.members)
        self._changed.clear()
        self.unused.clear()
        for member in self.members:
            if set_to_none:
                member.parameter.grad = None
            elif type(member.parameter.grad) is LazyGradient:  # autograd then adds to it in place
                member.parameter.grad = torch.zeros_like(member.parameter).detach()
            elif member.parameter.grad is not None:
                member.parameter.grad.zero_()

    def spoil(self) -> None:
        """Make every ``.grad`` NaN."""
        for member in self.members:
            grad = member.parameter.grad
            if grad is not None and grad.is_sparse:  # it may hold no element at all
                values = torch.full_like(member.parameter, torch.nan)
                member.parameter.grad = values.detach().to_sparse(grad.sparse_dim())
            elif grad is not None:
                grad.data.fill_(torch.nan)

    def copy_to_total(self, values: Tensor) -> Tensor:
        """Return ``total``, holding ``values[n]``."""
        return self.total if values is self.total else self.total.copy_(values)

    def assign(self, contributions: Sequence[Sparse], divisor: int) -> None:
        """Make ``Σ contributions / divisor`` the result, without a write to any ``.grad``.

        Args:
            contributions: All dense or all sparse. The first dense one may lie in ``total``. Sparse
                ones are divided as they are added, so that most elements are written just once: in
                ``publish``, where gradients are lent, or never, where the result is handed over.
            divisor: The world size for a mean of sums; 1 where the contributions are the result.
        """
        if not contributions[0].is_dense:
            self._mean = SparseMean(contributions, 1 / divisor)
            # On a GPU the result is written on the stream that computed the contributions.
            waits = self._lent or self.hands_over
            if not waits or self.device.type != 'cpu':
                self._spread_into_own()
            return
        result = self.copy_to_total(contributions[0].values)
        for contribution in contributions[1:]:
            contribution.add_to(result)
        result.div_(divisor)
        self._lent.clear()
        if result is self._wide:
            fill([self._storage()], result)

    @property
    def result(self) -> list[Tensor]:
        """What ``assign`` computed, as flat tensors, apart from any ``.grad``."""
        if self._mean is not None:
            self._spread_into_own()
        return self.pieces

    @property
    def mean(self) -> SparseMean | None:
        """What ``assign`` was given, while it is sparse and written nowhere."""
        return self._mean

    @property
    def shown(self) -> Tensor | None:
        """The float32 ``[n]`` of which every ``.grad`` is a view since ``publish``, if there is."""
        is_whole = self._shows_own and not self._lent and self._mean is None
        return self._own if is_whole and self.dtype == torch.float32 else None

    def scale(self, factor: Tensor) -> bool:
        """Multiply the result by ``factor``; return whether it is finite then."""
        for piece in self.result:
            piece.mul_(factor)
        return ops.kernels(self.device).finite(self.pieces)

    def _spread_into_own(self) -> None:
        """Add up sparse contributions in the bucket's own storage."""
        assert self._mean is not None
        mean, self._mean = self._mean, None
        self._lent.clear()
        mean.spread([self._storage()])

    def publish(self) -> None:
        """Write the result to the ``.grad`` of every parameter that was collected, unless it is
        handed over.

        What the training loop has changed until then is noted for ``touched``, and overwritten.
        """
        if not self.publishes or not (self.unused or any(self._taken)):
            return
        self._changed = self._changed_since()
        self._taken = [None] * len(self.members)
        if not self.hands_over or self._mean is None:
            self.write()

    def write(self, unused: Container[str] = ()) -> None:
        """Make the result every parameter's ``.grad``, but for those of these names."""
        if self._mean is not None:
            mean, self._mean = self._mean, None
            mean.spread(self.pieces)
            if len(self._lent) == len(self.members):
                self._own = None  # from uncompressed steps before this one
        self._show([m for m in self.members if m.name not in self._lent and m.name not in unused])

    def follow(self, sparse_dims: Mapping[str, int]) -> None:
        """Give results of parameters that this rank did not use the layout of the other ranks'.

        Called after ``publish``, whose result for them may have another layout.

        Args:
            sparse_dims: Name → the number of sparse dimensions of the ranks' gradients, 0 for
                dense ones; of parameters that some rank used.
        """
        others = []
        for member in self.members:
            name, own = member.name, self.sparse_dims.get(member.name, 0)
            if name in self.unused and sparse_dims.get(name, own) != own:
                self.sparse_dims[name] = sparse_dims[name]
                if not sparse_dims[name]:
                    del self.sparse_dims[name]
                others.append(member)
        if self.publishes and self._mean is None:
            self._show(others)

    def _show(self, members: Sequence[Member]) -> None:
        """Make the result, in the bucket's own storage, the ``.grad`` of these parameters: sparse
        where their gradients are, else a view."""
        shown = members
        if self.sparse_dims:
            for member in members:
                if member.name in self.sparse_dims:
                    dim = self.sparse_dims[member.name]
                    member.parameter.grad = self._part(member).to_sparse(dim)
            shown = [member for member in members if member.name not in self.sparse_dims]
        if shown:
            show([m.parameter for m in shown], self._storage(), [m.offset for m in shown])
            self._shows_own = True

    def take_over(self, unused: Container[str] = ()) -> None:
        """Replace every ``.grad`` by a lazy one, but for parameters of these names, after an
        optimizer has applied ``mean``.

        What autograd stored is released here, and its place need not be zeroed.
        """
        assert self._mean is not None
        mean, self._mean = self._mean, None
        if len(self._lent) == len(self.members):
            self._own = None  # as in ``write``
        self._lent.clear()
        for member in self.members:
            if member.name not in unused:
                member.parameter.grad = LazyGradient.of(mean, member.offset, member.parameter)

    def add_up(self, contributions: Sequence[Sparse], divisor: int) -> Tensor:
        """Return ``Σ contributions / divisor`` as a new float32 ``[n]``."""
        total = torch.zeros(self.numel, dtype=torch.float32, device=self.device)
        for contribution in contributions:
            contribution.add_to(total)
        return total.div_(divisor)


def part_of(flat: Tensor, offset: int, parameter: Tensor) -> Tensor:
    """Return the view of ``flat[n]`` that begins at ``offset``, in the shape of ``parameter``."""
    return flat[offset : offset + parameter.numel()].view(parameter.shape)
