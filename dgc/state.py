"""Declarations of the state of a composition's parts, and of its conversion between world sizes.

Every part of a composition (memory, compressor, exchange, transform) is a rule without storage.
``state_for(spec)`` declares what the part remembers of one bucket; the bucket allocates it, saves
it by parameter name and restores it, so that a later run may plan its buckets differently:

    Elements       [n], one number per element               saved by parameter
    PerParameter   one tensor per parameter, of any shape    saved by parameter
    OwnedSlice     float32, the rank's slice of [n]          saved by parameter
    Values         plain numbers that describe the bucket    saved with the bucket's names; a bucket
                                                             of other parameters starts anew

Each entry declares what becomes of it when a run resumes with another number of ranks:

    SUM            the ranks' entries add up to something that is divided by the world size
                   (residuals): new ranks share the sums, scaled by new / old world size
    REPLICATED     equal on all ranks: every new rank takes rank 0's
    PER_RANK       meaningful for one rank of one world size only: starts anew
    OWNER_SLICE    each rank holds the slice that it owns: slices are cut anew
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from dgc.bucket_spec import MemberSpec


class Resize(str, Enum):
    """How an entry follows a change of the number of ranks; see the module's table."""

    SUM = 'sum'
    REPLICATED = 'replicated'
    PER_RANK = 'per rank'
    OWNER_SLICE = "owner's slice"


@dataclass(frozen=True)
class Elements:
    """A tensor ``[n]`` of zeros: one number for each element of the bucket.

    Saved numbers of another type are converted when they are loaded: those of float32 are rounded
    to the nearest bfloat16.
    """

    resize: Resize = Resize.SUM
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class PerParameter:
    """One tensor for each parameter for which ``initial(member)`` returns one."""

    initial: Callable[[MemberSpec], Tensor | None]
    resize: Resize = Resize.REPLICATED


@dataclass(frozen=True)
class OwnedSlice:
    """A float32 tensor of zeros: the slice of ``[n]`` that this rank owns (``owned_range``)."""

    resize: Resize = Resize.OWNER_SLICE


@dataclass(frozen=True)
class Values:
    """A dictionary of plain numbers, strings and lists, empty at first."""

    resize: Resize = Resize.PER_RANK


Entry = Elements | PerParameter | OwnedSlice | Values
Entries = Mapping[str, Entry]  # entry name → what it is
ROLES = ('memory', 'compressor', 'exchange', 'transform', 'codec', 'control')


def owned_range(numel: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first and the last (exclusive) of the elements that ``rank`` of ``size`` owns."""
    return rank * numel // size, (rank + 1) * numel // size


def copied(value: Any) -> Any:
    """Return a copy of tensors, dictionaries of tensors, and plain values."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return copy.deepcopy(value)
