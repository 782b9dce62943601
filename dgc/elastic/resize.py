"""The state of a composition's parts, when the number of workers changes within a run.

As ``dgc.saved_state`` does for a checkpoint, by what each entry declares, but in place, and without
the state of those who are gone:

    sum             each worker keeps its own, times new / old world size: a residual is divided by
                    the world size when it is sent, so its part of the mean is unchanged
    replicated      unchanged
    owner's slice   added up over the workers, and cut anew; zeros where the owner is gone
    per rank        reset, on all workers
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.engines.base import Engine
from dgc.state import Elements, Entry, OwnedSlice, PerParameter, Resize, Values

Slices = dict[tuple[int, str, str], Tensor]  # bucket, role and entry → all of [n]


def entries(bucket: Bucket) -> Iterator[tuple[str, str, Entry]]:
    """Yield role, name and declaration of all that the parts keep of a bucket."""
    for role, declared in bucket.state.parts.items():
        for name, entry in declared.items():
            yield role, name, entry


def sums(buckets: Sequence[Bucket]) -> list[Tensor]:
    """Return the tensors ``[n]`` whose sum over the workers counts (residuals, momenta)."""
    return [
        bucket.state[role][name]
        for bucket in buckets
        for role, name, entry in entries(bucket)
        if isinstance(entry, Elements) and entry.resize is Resize.SUM
    ]


def residuals(buckets: Sequence[Bucket]) -> list[Tensor]:
    """Return the tensors ``[n]`` that hold what was not sent; momenta only where nothing else is
    kept."""
    found = []
    for bucket in buckets:
        held = bucket.buffers
        found += [held[name] for name in held if name != 'momentum' or len(held) == 1]
    return found


def norm(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of some tensors together."""
    squares = [float(each.double().square().sum()) for each in tensors]
    return sum(squares) ** 0.5


def gather_slices(buckets: Sequence[Bucket], engine: Engine) -> Slices:
    """Return the slices of all workers, put together. A collective.

    Before it, workers own slices of their former worlds, which may overlap where one of them has
    been cut anew and another one has not: those are averaged.
    """
    found: Slices = {}
    for number, bucket in enumerate(buckets):
        for role, name, entry in entries(bucket):
            if not isinstance(entry, OwnedSlice):
                continue
            values = bucket.state.expanded(role, name)
            owners = torch.zeros_like(values)
            owners[slice(*bucket.state.owned)] = 1
            engine.all_reduce(values)
            engine.all_reduce(owners)
            found[number, role, name] = values.div_(owners.clamp_(min=1))
    return found


def convert(buckets: Sequence[Bucket], old_size: int, engine: Engine, slices: Slices) -> None:
    """Convert this worker's state to the engine's rank and world size. Not a collective.

    Args:
        buckets: Whose state is changed in place. ``Reducer.resize`` has been called.
        old_size: The world size that it was for.
        engine: Has the new rank and size.
        slices: What ``gather_slices`` returned.
    """
    for tensor in sums(buckets):
        tensor.mul_(engine.size / old_size)
    for number, bucket in enumerate(buckets):
        for role, name, entry in entries(bucket):
            held = bucket.state[role][name]
            if isinstance(entry, OwnedSlice):
                held.copy_(slices[number, role, name][slice(*bucket.state.owned)])
            elif entry.resize is Resize.PER_RANK:
                reset(bucket, role, name, entry)


def reset(bucket: Bucket, role: str, name: str, entry: Entry) -> None:
    """Set an entry to its initial value."""
    held = bucket.state[role][name]
    if isinstance(entry, Values):
        held.clear()
    elif isinstance(entry, PerParameter):
        for member in bucket.spec.members:
            initial = entry.initial(member)
            if initial is not None:
                held[member.name].copy_(initial)
    else:
        held.zero_()
