"""What a selection loses of a gradient, against as many elements chosen at random."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dgc.bucket_spec import MemberSpec
from dgc.buckets import Bucket
from dgc.composition import Composition
from dgc.compressors import keep
from dgc.reducer import Reducer
from dgc.sparse import Payload, Sparse

WATCHER = 'selection errors'


class Reducing(Protocol):
    """An optimizer of this package, or the state of its hook for DistributedDataParallel."""

    @property
    def reducer(self) -> Reducer:
        """Processes its buckets."""


class LayerError(NamedTuple):
    """What was lost of one layer in one step.

    With ``x[d]``, the accumulated gradient from which ``k`` elements are selected, k elements at
    random lose ``(1 - k/d)·‖x‖²`` in the mean. Errors are fractions of that: below 1 where a
    selection is better than chance.

    Attributes:
        layer: The parameter's name.
        numel: ``d``.
        k: The elements of this layer that were selected; where the exchange selects, its density
            times d.
        random: ``(1 - k/d)·‖x‖²``.
        topk: ``‖x - topk(x)‖² / random``, of the k largest elements.
        selected: ``‖x - selected(x)‖² / random``, of the elements that the compressor selected;
            None where the exchange selects.
    """

    layer: str
    numel: int
    k: int
    random: float
    topk: float
    selected: float | None


class SelectionErrors:
    """Measures the errors of selections on this rank, layer by layer, in the steps that are chosen.

    Proofs of convergence assume that a selection is a contraction, ``‖x - C(x)‖² ≤
    (1 - k/d)·‖x‖²``; layer by layer, those of layer-wise sparsification (Shi et al., arXiv
    1911.08727). A layer of which all elements are sent, or that is zero or not finite, is left out.

        errors = dgc.SelectionErrors(optimizer)
        for step, batch in enumerate(loader):
            errors.measures = step % 100 == 0    # before the backward pass
            ...
            optimizer.step()
            for each in errors.take():
                print(each.layer, each.topk, each.selected)

    Args:
        optimizer: A DistributedOptimizer, LocalSteps, StreamingSteps, or the state of a DDP hook
            after its first backward pass.

    Attributes:
        measures: Whether the next exchanges are measured. Nothing is computed otherwise.

    Raises:
        ValueError: Where nothing is selected, so that nothing can be measured.
    """

    def __init__(self, optimizer: Reducing) -> None:
        self._reducer = optimizer.reducer
        reason = unmeasurable(self._reducer)
        if reason:
            raise ValueError(f'the error of a selection cannot be measured: {reason}')
        self.measures = False
        self._found: list[LayerError] = []
        self._reducer.watchers[WATCHER] = self._note

    def take(self) -> list[LayerError]:
        """Return what was measured since the last call, in the order of the buckets."""
        found, self._found = self._found, []
        return found

    def _note(self, bucket: Bucket, selected: Sparse) -> None:
        """Measure a bucket's layers. Called on the engine's thread, before the exchange."""
        if not self.measures:
            return
        composition, density = self._reducer.composition, bucket.density
        size = self._reducer.engine.size
        is_compressed = composition.volume.compresses(bucket.spec, density, size)
        # The message of a gradient that is not finite is a NaN, and nothing was accumulated.
        if density is None or not is_compressed or not bool(selected.values.isfinite().all()):
            return
        self._found += errors(accumulated(bucket, composition), bucket, selected, density)


def unmeasurable(reducer: Reducer) -> str:
    """Return why no bucket has a selection to measure; '' where one has."""
    composition = reducer.composition
    memory, exchange = composition.memory, composition.exchange
    if all(bucket.spec.schedule is None for bucket in reducer.buckets):
        return 'every gradient is sent uncompressed'
    if composition.compressor.payload is Payload.DENSE and not exchange.selects:
        return f'{type(exchange).__name__} sends something of every element'
    if not memory.unsent and (memory.buffers or not composition.transform.is_identity):
        return f'{type(memory).__name__} does not keep what it selects from'
    return ''


def accumulated(bucket: Bucket, composition: Composition) -> Tensor:
    """Return what is selected from, float32 ``[n]``, between selection and exchange: what was sent
    is still in the residual."""
    memory = composition.memory
    if memory.unsent:
        return bucket.buffers[memory.unsent].float()
    return torch.cat([piece.float() for piece in bucket.pieces])


def errors(x: Tensor, bucket: Bucket, selected: Sparse, density: float) -> Iterator[LayerError]:
    """Yield the error of each layer of a bucket.

    Args:
        x: Float32 ``[n]``, what is selected from.
        bucket: Whose layers it has.
        selected: From all of them; dense where the exchange selects.
        density: Of this step.
    """
    for member in bucket.spec.members:
        part = x[member.offset : member.offset + member.numel]
        taken = None if selected.indices is None else within(selected.indices, member)
        k = keep(member.numel, density) if taken is None else len(taken)
        total = squares(part)
        random = (1 - k / max(member.numel, 1)) * total
        if not 0 < random < float('inf'):  # nor where it is NaN
            continue
        largest = part.abs().topk(k, sorted=False).values
        yield LayerError(
            member.name,
            member.numel,
            k,
            random,
            topk=(total - squares(largest)) / random,
            selected=None if taken is None else (total - squares(part[taken])) / random,
        )


def within(indices: Tensor, member: MemberSpec) -> Tensor:
    """Return the indices, ascending in the bucket, that lie in a member, counted from its start."""
    limits = torch.tensor([member.offset, member.offset + member.numel], device=indices.device)
    first, stop = torch.searchsorted(indices, limits).tolist()
    return indices[first:stop] - member.offset


def squares(x: Tensor) -> float:
    """Return ``‖x‖²``, added up in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2
